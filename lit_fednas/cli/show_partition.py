"""The command ``partition``."""

from pathlib import Path

from lit_fednas.data import FederatedDataModule
from lit_fednas.records.files import check_output


class ShowPartition:
    """The command ``partition``, for a data module."""

    def __init__(self, datamodule: FederatedDataModule) -> None:
        self.datamodule = datamodule

    def run(self, output: str = "partition", overwrite: bool = False) -> None:
        """Prints an overview of the data, and writes each client's examples by class (SuperFed, Fig. 9).

        Args:
            output: The folder for ``partition.png``, and for ``partition.csv`` if clients times classes are at most a
            million.
            overwrite: Whether to replace files of these names that this command has not written.
        """
        from lit_fednas.records.partition import write_partition  # importing matplotlib takes a while

        check_output(*(Path(output) / f"partition.{kind}" for kind in ("csv", "png")), overwrite=overwrite)
        data = self.datamodule
        print(data.overview())
        print("written:", *write_partition(data.class_counts, data.strata, Path(output), data.owners))
