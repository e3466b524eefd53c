"""Writes how the data were dealt to the clients into the run's folder."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer

from lit_fednas.data import FederatedDataModule, write_partition
from lit_fednas.federation.run_folder import keeps_files, run_folder


class PartitionFiles(Callback):
    """Writes ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes both, once."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if not (folder / "partition.png").exists():
            write_partition(data.partition, data.targets, data.class_names, folder)
