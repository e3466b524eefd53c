"""Writes what the data are, and how they were dealt to the clients, into the run's folder."""

from __future__ import annotations

from lightning import Callback

from lit_fednas.data import FederatedDataModule
from lit_fednas.data.statistics import write_partition
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.run_folder import keeps_files, run_folder
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import INPUTS_FILE


class PartitionFiles(Callback):
    """Writes ``inputs.json``, ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes all, once."""
        data = trainer.datamodule
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if not (folder / "partition.png").exists():
            replace_json(folder / INPUTS_FILE, data.inputs_record())
            write_partition(data.class_counts, data.strata, folder)
