"""A trainer's run folder, and whether its process writes files there."""

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def keeps_files(trainer: pl.Trainer) -> bool:
    """Returns whether this process keeps a run's files: the first rank does, unless it is a ``fast_dev_run``."""
    # without a logger, default_root_dir is the run's folder, unless it is the working directory
    has_folder = bool(trainer.loggers) or Path(trainer.default_root_dir).resolve() != Path.cwd()
    return has_folder and trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


def run_folder(trainer: pl.Trainer) -> Path:
    """Returns the first logger's folder, or ``default_root_dir``; ``trainer.log_dir`` would synchronise all ranks."""
    if not trainer.loggers:
        return Path(trainer.default_root_dir)
    first = trainer.loggers[0]
    if isinstance(first, CSVLogger | TensorBoardLogger):
        return Path(first.log_dir)
    folder = Path(first.save_dir or trainer.default_root_dir)
    # like ModelCheckpoint, because all runs of a logger may share its save_dir, even the working directory
    return folder if first.version is None else folder / str(first.name) / str(first.version)
