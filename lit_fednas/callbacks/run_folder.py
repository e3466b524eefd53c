"""Where a run keeps its files."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer


def run_folder(trainer: Trainer) -> Path:
    """The first logger's folder, or ``default_root_dir`` without one."""
    return Path(trainer.log_dir or trainer.default_root_dir)
