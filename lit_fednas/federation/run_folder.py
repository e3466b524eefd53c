"""The folder of a run's files."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def keeps_files(trainer: Trainer) -> bool:
    """Returns whether this process keeps a run's files: the first rank does, unless it is a ``fast_dev_run``.

    Without a logger they go to ``default_root_dir``, and the working directory is not a run's folder: none are kept.
    """
    own = bool(trainer.loggers) or Path(trainer.default_root_dir).resolve() != Path.cwd()
    return own and trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


def run_folder(trainer: Trainer) -> Path:
    """Returns the first logger's folder, or ``default_root_dir`` without one, without asking other ranks.

    (Lightning's ``trainer.log_dir`` is a collective call.)
    """
    if not trainer.loggers:
        return Path(trainer.default_root_dir)
    first = trainer.loggers[0]
    if isinstance(first, CSVLogger | TensorBoardLogger):
        return Path(first.log_dir)
    folder = Path(first.save_dir or trainer.default_root_dir)
    # as ModelCheckpoint does: all runs of a logger may share its save_dir, which may be the working directory
    return folder if first.version is None else folder / str(first.name) / str(first.version)
