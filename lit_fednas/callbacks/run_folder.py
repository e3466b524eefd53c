"""Where a run keeps its files."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer


def keeps_files(trainer: Trainer) -> bool:
    """Whether this process writes files: the first rank, and not in a ``fast_dev_run``."""
    return trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


def run_folder(trainer: Trainer) -> Path:
    """The first logger's folder, or ``default_root_dir`` without one."""
    return Path(trainer.log_dir or trainer.default_root_dir)
