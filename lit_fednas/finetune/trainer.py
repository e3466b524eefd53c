"""The trainer that also fine-tunes what a search has found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Trainer
from torch import nn

from lit_fednas.callbacks import RoundCheckpoint, RoundProgress, RunRecorder
from lit_fednas.data import FederatedDataModule
from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.interrupts import Interrupts
from lit_fednas.federation.run_folder import run_folder
from lit_fednas.finetune.run import Finetuning
from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.formatting import text_table
from lit_fednas.loggers import RunLogger
from lit_fednas.records import FinetuneFiles, SearchFiles
from lit_fednas.search import Evaluator, SearchTrainer
from lit_fednas.search.clients import write_clients
from lit_fednas.supernets import PlainNetwork


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
        """Trains each tier's network federatedly on the clients of that tier and above, or models that are named.

        What was stopped goes on where it was when it is started again.

        Args:
            model: The server's module.
            datamodule: The data.
            ckpt_path: The checkpoint that was searched, or holds the models; ``None`` for the module as it is.
            finetune: What to do.
            folder: The run's folder; by default the first logger's.

        Returns:
            What was written.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        self._load(model, datamodule, ckpt_path)
        if finetune.architectures > 1 and server_batches(datamodule, "val") is None:
            raise ConfigError(
                f"data.server_val: 0 leaves nothing to choose the best of finetune.architectures "
                f"{finetune.architectures} by; give the server some examples, or set finetune.architectures to 1"
            )
        run = Path(folder or run_folder(self))
        files = FinetuneFiles(run / finetune.name)
        search = SearchFiles(run / finetune.search)
        interrupts = Interrupts()
        shows_progress = self.progress_bar_callback is not None

        def make_trainer(folder: Path, rounds: int) -> FederatedTrainer:
            interrupts.check()
            device = self.strategy.root_device
            progress = [RoundProgress()] if shows_progress else []  # Lightning refuses one that is turned off
            return FederatedTrainer(
                max_rounds=rounds,
                check_val_every_n_rounds=min(finetune.check_val_every_n_rounds, rounds),
                threads=self.threads,
                accelerator=device.type,
                devices=1 if device.index is None else [device.index],
                logger=RunLogger(str(folder.parent.parent), folder.parent.name, folder.name),
                callbacks=[RunRecorder(), RoundCheckpoint(), _Stop(interrupts), *progress],
                enable_model_summary=False,
                enable_progress_bar=shows_progress,
            )

        recalibration = model.recalibration_batches(datamodule.clients)

        def evaluator(network: PlainNetwork, split: str) -> Evaluator | None:
            batches = server_batches(datamodule, split)
            return None if batches is None else Evaluator(network, batches, model.evaluation, recalibration)

        def as_evaluated(network: PlainNetwork) -> nn.Module:
            return Evaluator(network, [], model.evaluation, recalibration).network("whole")

        tuning = Finetuning(finetune, model, datamodule, files, search, make_trainer, evaluator, as_evaluated)
        with self._threads(model), interrupts.listening():
            rows = tuning.run()
            if finetune.models is None:  # else no network is that of a client's tier
                write_clients(model, datamodule, files)
        print(format_finetuned(rows))
        return files

    #: The command's name. (jsonargparse names a group after the function.)
    finetune = finetune_tiers


class _Stop(FederatedCallback):
    """Stops a candidate's training for a signal that came before its own loop listened."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    def on_cohort_start(self, trainer: Trainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Raises if there was one."""
        self.interrupts.check()


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
