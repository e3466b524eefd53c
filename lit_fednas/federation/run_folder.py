"""The folder of a run's files."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def keeps_files(trainer: Trainer) -> bool:
    """Returns whether this process writes files: the first rank does, unless it is a ``fast_dev_run``."""
    return trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


def run_folder(trainer: Trainer) -> Path:
    """Returns the first logger's folder, or ``default_root_dir`` without one, without asking other ranks.

    (Lightning's ``trainer.log_dir`` is a collective call.)
    """
    if not trainer.loggers:
        return Path(trainer.default_root_dir)
    first = trainer.loggers[0]
    folder = first.log_dir if isinstance(first, CSVLogger | TensorBoardLogger) else first.save_dir
    return Path(folder or trainer.default_root_dir)
