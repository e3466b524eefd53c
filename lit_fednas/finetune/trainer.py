"""The trainer that also fine-tunes what a search has found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from lit_fednas.callbacks import RoundCheckpoint, RoundProgress, RunRecorder
from lit_fednas.data import FederatedDataModule
from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import DataError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.run_folder import run_folder
from lit_fednas.finetune.run import Finetuning
from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.loggers import RunLogger
from lit_fednas.records import FinetuneFiles, SearchFiles
from lit_fednas.search import Evaluator, SearchTrainer
from lit_fednas.search.clients import write_clients
from lit_fednas.supernets import PlainNetwork
from lit_fednas.text_table import text_table


class FinetuneTrainer(SearchTrainer):
    """A federated trainer that searches the supernet it has trained, fine-tunes, and exports."""

    def finetune_tiers(
        self,
        model: FederatedLightningModule,
        datamodule: FederatedDataModule,
        ckpt_path: str | None = "last",
        finetune: FinetuneSettings = FinetuneSettings(),
        folder: Path | str | None = None,
    ) -> FinetuneFiles:
        """Trains each tier's network federatedly on the clients of that tier and above.

        What was stopped goes on where it was when it is started again.

        Args:
            model: The server's module.
            datamodule: The data.
            ckpt_path: The checkpoint that was searched; ``None`` for the module as it is.
            finetune: What to do.
            folder: The run's folder; by default the first logger's.

        Returns:
            What was written.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        self._load(model, datamodule, ckpt_path)
        run = Path(folder or run_folder(self))
        files = FinetuneFiles(run / finetune.name)
        search = SearchFiles(run / finetune.search)

        def make_trainer(folder: Path) -> FederatedTrainer:
            device = self.strategy.root_device
            return FederatedTrainer(
                max_rounds=finetune.rounds,
                check_val_every_n_rounds=min(finetune.check_val_every_n_rounds, finetune.rounds),
                threads=self.threads,
                accelerator=device.type,
                devices=1 if device.index is None else [device.index],
                logger=RunLogger(str(folder.parent.parent), folder.parent.name, folder.name),
                callbacks=[RunRecorder(), RoundCheckpoint(), RoundProgress()],
                enable_model_summary=False,
                enable_progress_bar=self.progress_bar_callback is not None,
            )

        recalibration = model.recalibration_batches(datamodule.clients)

        def evaluator(network: PlainNetwork, split: str) -> Evaluator | None:
            batches = server_batches(datamodule, split)
            return None if batches is None else Evaluator(network, batches, model.evaluation, recalibration)

        def as_evaluated(network: PlainNetwork) -> nn.Module:
            return Evaluator(network, [], model.evaluation, recalibration).network("whole")

        tuning = Finetuning(finetune, model, datamodule, files, search, make_trainer, evaluator, as_evaluated)
        with self._threads(model):
            rows = tuning.run()
            write_clients(model, datamodule, files.networks)
        print(format_finetuned(rows))
        return files

    #: The command's name. (jsonargparse names a group after the function.)
    finetune = finetune_tiers


def server_batches(datamodule: FederatedDataModule, split: str) -> EvalBatches | None:
    """The server's data of a split; ``None`` if it has none."""
    try:
        batches = datamodule.val_dataloader() if split == "val" else datamodule.test_dataloader()
    except DataError:
        return None
    return batches if isinstance(batches, EvalBatches) else None


SHOWN = ("val_accuracy_before", "val_accuracy", "test_accuracy")


def format_finetuned(rows: list[dict[str, Any]]) -> str:
    """The rows of ``tiers.csv`` as aligned text, costs in millions."""
    head = ["tier", "architecture", "clients", "rounds", "MMACs", "val before", "val accuracy", "test accuracy"]
    body = [
        [
            row["tier"],
            row["arch"],
            str(row["eligible"]),
            str(row["rounds"]),
            f"{row['macs_per_example'] / 1e6:.2f}",
            *("" if row[key] is None else f"{row[key]:.4f}" for key in SHOWN),
        ]
        for row in rows
    ]
    return text_table(head, body, left=2)
