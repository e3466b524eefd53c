"""Writes how the data were dealt to the clients into the run's folder."""

from __future__ import annotations

from lightning import Callback

from lit_fednas.data import FederatedDataModule
from lit_fednas.data.statistics import write_partition
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.run_folder import keeps_files, run_folder


class PartitionFiles(Callback):
    """Writes ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes both, once."""
        data = trainer.datamodule
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if not (folder / "partition.png").exists():
            write_partition(data.partition, data.targets, data.class_names, folder)
