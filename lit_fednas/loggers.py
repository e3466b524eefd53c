"""A CSV logger whose file survives resuming, and the run that a checkpoint belongs to."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.initial_weights import read_checkpoint
from lit_fednas.records.files import naming, reading, replace_table


class RunLogger(CSVLogger):
    """Lightning's CSV logger, but a run that resumes in its folder keeps the rows of the rounds before.

    Rows of rounds that the resumed run does again are dropped when it logs them.

    Args:
        save_dir: The folder of all runs.
        name: The run's name.
        version: Its number, or a name; the next free number if not given.

    Raises:
        ConfigError: The name or the version leads out of the folder of all runs, or cannot be one.
    """

    def __init__(self, save_dir: str = "runs", name: str = "run", version: int | str | None = None) -> None:
        for setting, folder in (("name", name), ("version", str(version))):
            if Path(folder).is_absolute() or ".." in Path(folder).parts or not folder.isprintable():
                field = f"trainer.logger.init_args.{setting}"
                raise ConfigError(f"{field}: {folder!r} leaves save_dir, or names no folder; give a name below it")
        super().__init__(save_dir, name=name, version=version, flush_logs_every_n_steps=1)

    @property
    @rank_zero_only
    def experiment(self) -> Any:
        """The writer, created at first use."""
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _ResumingWriter(log_dir=self.log_dir)
        return self._experiment


def continue_run(loggers: Any, ckpt_path: str, checkpoints: Path | None = None) -> str:
    """Finds the newest run of a :class:`RunLogger`, and lets the logger write into the folder of its checkpoint.

    Args:
        loggers: The configuration of a logger, or of several, of which the first counts; changed in place.
        ckpt_path: ``last`` or ``best`` of the newest run, or a file.
        checkpoints: Where every run writes its checkpoints; ``None`` if each has a folder of its own.

    Returns:
        The checkpoint's file; ``ckpt_path`` as it is with another logger, unless ``checkpoints`` has its ``last``.

    Raises:
        CheckpointError: No run was found, or the newest has no checkpoint.
    """
    settings = _settings(loggers)
    if settings is None:
        last = None if checkpoints is None else checkpoints / "last.ckpt"
        return str(last) if ckpt_path == "last" and last is not None and last.exists() else ckpt_path
    root = Path(settings["save_dir"]) / settings["name"]
    checkpoint = _newest(root, settings["version"], ckpt_path) if ckpt_path in ("last", "best") else Path(ckpt_path)
    folder = checkpoint.parent.parent
    if folder.parent.resolve() == root.resolve():
        settings["version"] = folder.name
    return str(checkpoint)


def check_new_run(loggers: Any, root: str | None = None) -> None:
    """Validates that a run which starts from the beginning does not replace another one.

    Args:
        loggers: As for :func:`continue_run`.
        root: Where the run's files go without a logger; ``None`` if they are not kept.

    Raises:
        ConfigError: The folder that a :class:`RunLogger` names has the checkpoint of a run, or ``root`` is not empty.
    """
    settings = _settings(loggers)
    if not loggers and root is not None and Path(root).resolve() != Path.cwd() and any(Path(root).glob("*")):
        raise ConfigError(
            f"trainer.default_root_dir: {root} is not empty, and without a logger the run's files go there; give a "
            f"new folder, or set ckpt_path to the checkpoint of the run to continue"
        )
    if settings is None or settings["version"] is None:
        return
    folder = Path(settings["save_dir"]) / settings["name"] / _folder_name(settings["version"])
    if any(folder.glob("checkpoints/*.ckpt")):
        raise ConfigError(
            f"trainer.logger.init_args.version: {folder} holds a run; leave version out to start another one, set "
            f"ckpt_path to last to continue it, or delete its folder"
        )


def _settings(loggers: Any) -> Any:
    """Returns the settings of the first logger, if it is a :class:`RunLogger`."""
    first = loggers[0] if isinstance(loggers, list) else loggers
    known = isinstance(first, Namespace | dict) and first["class_path"].endswith(RunLogger.__name__)
    return first["init_args"] if known else None


def _folder_name(version: int | str) -> str:
    return f"version_{version}" if isinstance(version, int) else version


def _newest(root: Path, version: int | str | None, word: str) -> Path:
    """Returns the last or the best checkpoint of the newest run, or of a version."""
    name = None if version is None else _folder_name(version)
    files = [
        (path.stat().st_mtime, run)
        for run in root.glob("*")
        if name in (None, run.name)
        for path in (run / "config.yaml", run / "checkpoints" / "last.ckpt")
        if path.exists()
    ]
    if not files:
        raise CheckpointError(
            f"ckpt_path: {word!r} finds no run in {root}; start one (fit without ckpt_path), or give a file"
        )
    _, run = max(files)
    newest = run / "checkpoints" / "last.ckpt"
    if not newest.exists():
        raise CheckpointError(
            f"ckpt_path: {word!r}: the newest run, {run}, has no checkpoint yet; give the file of another one"
        )
    return newest if word == "last" else _best_of(newest)


def _best_of(last: Path) -> Path:
    """Returns the best checkpoint that a run's last one names."""
    for state in read_checkpoint(last, ["callbacks"])["callbacks"].values():
        if isinstance(state, dict) and state.get("best_model_path"):
            return last.parent / Path(state["best_model_path"]).name
    raise CheckpointError(
        f"ckpt_path: 'best' finds none in {last.parent}; train with --checkpoint.monitor, or use last"
    )


class _ResumingWriter(ExperimentWriter):
    """Writes ``metrics.csv``; rows already there are kept up to the first step that is logged again."""

    def _check_log_dir_exists(self) -> None:
        """Reads the rows of the run's earlier part instead of removing them."""
        self._earlier: list[dict[str, Any]] | None = None
        if os.path.isfile(self.metrics_file_path):
            with reading(self.metrics_file_path), open(self.metrics_file_path, newline="") as file:
                whole = (line for line in file if line.endswith("\n"))  # a kill may have cut the last one short
                self._earlier = [{**row, "step": int(row["step"])} for row in csv.DictReader(whole)]

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Adds a row; before the first one, drops earlier rows from its step on."""
        if self._earlier is not None and step is not None:
            self._keep([row for row in self._earlier if row["step"] < step])
            self._earlier = None
        super().log_metrics(metrics_dict, step)

    def save(self) -> None:
        """Writes the rows that are not written yet."""
        with naming(self.metrics_file_path):
            super().save()

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        """Adds columns; the file is replaced as a whole."""
        with open(self.metrics_file_path, newline="") as file:
            rows = list(csv.DictReader(file))
        replace_table(self.metrics_file_path, fieldnames, rows, lineterminator="\r\n")

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        self.metrics_keys = sorted({name for row in rows for name in row})
        replace_table(self.metrics_file_path, self.metrics_keys, rows, lineterminator="\r\n")  # as Lightning's
