"""Files that describe the data and their partition, in the run's folder."""

from lightning import Callback

from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.records.files import replace_json
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.partition import write_partition
from lit_fednas.records.run import INPUTS_FILE


class PartitionFiles(Callback):
    """Writes ``inputs.json``, ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        data = trainer.datamodule
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if trainer.global_step == 0 or not (folder / "partition.png").exists():  # a round is a step
            replace_json(folder / INPUTS_FILE, data.inputs_record())
            write_partition(data.class_counts, data.strata, folder, data.owners)
