"""What one process reads for all processes of a run, so that the others neither read nor hold it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import lightning.pytorch as pl
import numpy as np
import torch
from torch import distributed

from lit_fednas.data.examples import ExampleDataset, Examples

T = TypeVar("T")


def load_once(load: Callable[[], ExampleDataset | None], trainer: pl.Trainer | None) -> ExampleDataset | None:
    """Loads examples in one process of each machine; all of its processes map them, and so share the memory."""
    if trainer is None or not _several(trainer):
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
        examples = _mapped(folder)
        strategy.barrier()  # what is mapped stays until the last process ends
        return examples
    finally:
        if trainer.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def compute_once(compute: Callable[[], T], trainer: pl.Trainer | None) -> T:
    """Computes something small in the first process, from which the others receive it."""
    if trainer is None or not _several(trainer):
        return compute()
    value: T | None = None
    computed = True
    try:
        if trainer.global_rank == 0:
            value = compute()
    except Exception:  # every process raises it below
        computed = False
    if not trainer.strategy.reduce_boolean_decision(computed):
        return compute()
    received: T = trainer.strategy.broadcast(value)  # type: ignore[assignment]
    return received


def _several(trainer: pl.Trainer) -> bool:
    """Whether processes are connected."""
    return trainer.world_size > 1 and distributed.is_initialized()


def _write(examples: ExampleDataset | None, folder: Path) -> bool:
    """Writes examples; returns whether there are any in memory."""
    if not isinstance(examples, Examples):
        return False
    for number, column in enumerate(map(np.asarray, examples.columns.values())):
        np.save(folder / f"{number}.npy", column.astype(str) if column.dtype.kind == "O" else column)
    content = examples.inputs.contiguous(), examples.targets.contiguous(), list(examples.columns)
    torch.save(content, folder / "examples.pt")
    return True


def _mapped(folder: Path) -> Examples:
    """Returns examples that were written, which stay on disk until they are used."""
    inputs, targets, names = torch.load(folder / "examples.pt", mmap=True, weights_only=True)
    files = (folder / f"{number}.npy" for number in range(len(names)))
    columns = {name: np.asarray(np.load(file, mmap_mode="r")) for name, file in zip(names, files, strict=True)}
    return Examples(inputs, targets, columns)
