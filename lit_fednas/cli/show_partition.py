"""The command ``partition``."""

from pathlib import Path

from lit_fednas.data import FederatedDataModule
from lit_fednas.records.files import check_output


class ShowPartition:
    """The command ``partition``, for a data module."""

    def __init__(self, datamodule: FederatedDataModule) -> None:
        self.datamodule = datamodule

    def run(self, output: str = "partition", overwrite: bool = False) -> None:
        """Shows what was understood of the data, and writes who has which, also as a picture (SuperFed's Fig. 9).

        Args:
            output: A folder for ``partition.csv`` (up to a million clients times classes) and ``partition.png``.
            overwrite: Whether to replace such files that this command has not written.

        Raises:
            ConfigError: The folder cannot be written to, or holds such files.
        """
        from lit_fednas.records.partition import write_partition  # matplotlib takes a while

        check_output(*(Path(output) / f"partition.{kind}" for kind in ("csv", "png")), overwrite=overwrite)
        data = self.datamodule
        print(data.overview())
        print("written:", *write_partition(data.class_counts, data.strata, Path(output), data.owners))
