"""A CSV logger that keeps its file when a run is resumed."""

import csv
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lit_fednas.records.files import check_folder_name, naming, read_table, replace_table, seal, unseal


class RunLogger(CSVLogger):
    """Lightning's CSV logger, which keeps the rows of its folder: each command adds its rows below.

    Args:
        save_dir: Folder of all runs.
        name: Name of the run.
        version: Number or name of the run's version; by default the next free number.

    Raises:
        ConfigError: The name or the version cannot be that of a folder in ``save_dir``.
    """

    def __init__(self, save_dir: str = "runs", name: str = "run", version: int | str | None = None) -> None:
        for setting, folder in (("name", name), ("version", str(version))):
            for part in Path(folder).parts:
                check_folder_name(f"trainer.logger.init_args.{setting}", part)
        super().__init__(os.path.expanduser(save_dir), name=name, version=version, flush_logs_every_n_steps=1)

    @property
    @rank_zero_only
    def experiment(self) -> Any:
        """The writer, created at first use."""
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _AddingWriter(log_dir=self.log_dir)
        return self._experiment

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Saves the rows; removes the folder of a run that failed before it wrote a file."""
        super().finalize(status)
        if status == "success" and self._experiment is not None:
            seal(Path(self.log_dir), self._experiment.NAME_METRICS_FILE)
        if status == "failed" and self._experiment is not None:
            with suppress(OSError):  # the folder holds files
                os.rmdir(self.log_dir)
                self._experiment = None


class _AddingWriter(ExperimentWriter):
    """A writer that adds rows to ``metrics.csv``, below those of earlier commands."""

    @override
    def _check_log_dir_exists(self) -> None:
        """Validates the present file instead of removing it; removes an incomplete last line."""
        path = Path(self.metrics_file_path)
        if path.is_file():
            rows = read_table(path, ["step"], grows=True)
            self.metrics_keys = [*rows[0]] if rows else []
            if not rows:
                path.unlink()  # the next rows write the head again
            elif not path.read_bytes().endswith(b"\n"):
                self._replace(self.metrics_keys, rows)

    @override
    def save(self) -> None:
        if self.metrics:
            unseal(Path(self.metrics_file_path))
        with naming(self.metrics_file_path):
            super().save()

    @override
    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with open(self.metrics_file_path, newline="") as file:
            rows = list(csv.DictReader(file))
        self._replace(fieldnames, rows)

    def _replace(self, fieldnames: list[str], rows: list[dict[str, Any]]) -> None:
        replace_table(self.metrics_file_path, fieldnames, rows, lineterminator="\r\n")  # Lightning's line ends
