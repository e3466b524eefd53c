"""One copy of the examples for all processes of a machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import lightning.pytorch as pl
import numpy as np
import torch
from torch import distributed

from lit_fednas.data.examples import Examples


def load_once(load: Callable[[], Examples | None], trainer: pl.Trainer | None) -> Examples | None:
    """Loads examples in one process of each machine; all of its processes map them, and so share the memory.

    Args:
        load: Loads them, the same in every process.
        trainer: Of this process; a collective call if it has connected several.

    Returns:
        The examples, which must not be written to.

    Raises:
        Exception: What ``load`` raises, in every process.
    """
    if trainer is None or trainer.world_size == 1 or not distributed.is_initialized():
        return load()
    strategy = trainer.strategy
    folder = Path(tempfile.gettempdir()) / f"lit-fednas-{strategy.broadcast(uuid4().hex)}-{trainer.node_rank}"
    written = True
    try:
        if trainer.local_rank == 0:
            folder.mkdir(mode=0o700)
            written = _write(load(), folder)
    except Exception:  # every process raises it below
        written = False
    try:
        if not strategy.reduce_boolean_decision(written):
            return load()
        inputs, targets = torch.load(folder / "tensors.pt", mmap=True, weights_only=True)
        with np.load(folder / "columns.npz") as columns:
            examples = Examples(inputs, targets, dict(columns))
        strategy.barrier()  # what is mapped stays until the last process ends
        return examples
    finally:
        if trainer.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _write(examples: Examples | None, folder: Path) -> bool:
    """Writes examples; returns whether there are any."""
    if examples is None:
        return False
    torch.save((examples.inputs.contiguous(), examples.targets.contiguous()), folder / "tensors.pt")
    columns: Any = {name: np.asarray(column) for name, column in examples.columns.items()}
    np.savez(folder / "columns.npz", **columns)
    return True
