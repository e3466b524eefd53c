"""A CSV logger whose file survives resuming."""

from __future__ import annotations

import csv
import os
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from lit_fednas.records.files import replace_table


class RunLogger(CSVLogger):
    """Lightning's CSV logger, but a run that resumes in its folder keeps the rows of the rounds before.

    Rows of rounds that the resumed run does again are dropped when it logs them.

    Args:
        save_dir: Where runs are kept.
        name: The run's name.
        version: Its number, or a name; the next free number if not given.
    """

    def __init__(self, save_dir: str = "runs", name: str = "run", version: int | str | None = None) -> None:
        super().__init__(save_dir, name=name, version=version, flush_logs_every_n_steps=1)

    @property
    @rank_zero_only
    def experiment(self) -> Any:
        """The writer, made at first use."""
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _ResumingWriter(log_dir=self.log_dir)
        return self._experiment


class _ResumingWriter(ExperimentWriter):
    """Writes ``metrics.csv``; rows already there are kept up to the first step that is logged again."""

    def _check_log_dir_exists(self) -> None:
        """Reads the rows of the earlier part instead of removing them."""
        self._earlier: list[dict[str, Any]] | None = None
        if os.path.isfile(self.metrics_file_path):
            with open(self.metrics_file_path, newline="") as file:
                whole = (line for line in file if line.endswith("\n"))  # a kill may have cut the last one short
                self._earlier = list(csv.DictReader(whole))

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Adds a row; before the first, drops the earlier part's rows from its step on."""
        if self._earlier is not None and step is not None:
            self._keep([row for row in self._earlier if int(row["step"]) < step])
            self._earlier = None
        super().log_metrics(metrics_dict, step)

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        """Replaces the file by one of these rows; a kill leaves the one or the other."""
        self.metrics_keys = sorted({name for row in rows for name in row})
        replace_table(self.metrics_file_path, self.metrics_keys, rows, lineterminator="\r\n")  # as Lightning's
