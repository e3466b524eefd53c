"""What Weights & Biases gets beside the metrics that its logger takes anyway."""

from __future__ import annotations

from typing import Any

import wandb
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from lit_fednas.callbacks.subnet_table import COLUMNS, table_rows
from lit_fednas.data import plot_partition
from lit_fednas.federation import FederatedLightningModule


class WandbLogging(Callback):
    """Logs the partition's picture, the table of subnets and the ledger's summary to every ``WandbLogger``.

    Without one it does nothing. The configuration goes there as nested hyperparameters (``lit_fednas.cli``).
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the partition as a picture."""
        for run in _runs(trainer):
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            figure = plot_partition(data.partition, data.targets, data.class_names)
            run.log({"partition": wandb.Image(figure)}, commit=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the last validation of all subnets."""
        self._log_subnets(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the test of all subnets."""
        self._log_subnets(trainer, pl_module, "test")

    def _log_subnets(self, trainer: Trainer, pl_module: LightningModule, split: str) -> None:
        assert isinstance(pl_module, FederatedLightningModule)
        rows = table_rows(pl_module, trainer.callback_metrics, split)
        for run in _runs(trainer) if rows else []:
            cells = [[row[column] for column in COLUMNS] for row in rows]
            run.log({f"subnets/{split}": wandb.Table(columns=list(COLUMNS), data=cells)})
            for row in rows:
                run.summary[f"subnets/{split}/{row['subnet']}/accuracy"] = row["accuracy"]


def _runs(trainer: Trainer) -> list[Any]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]
