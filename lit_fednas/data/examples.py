"""Examples: the tensors of one split with natural groupings, and how one process reads them for all of a run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, distributed

from lit_fednas.errors import DataError

T = TypeVar("T")


class ExampleDataset(Protocol):
    """A map-style data set whose targets are known without decoding any input: ``Examples``, or ``LazyImages``."""

    @property
    def targets(self) -> Tensor:
        """The targets [N, ...]."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Natural groupings, each [N]."""

    def __len__(self) -> int:
        """The number of examples."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The raw input and the target of one example."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets of one split, in memory.

    Attributes:
        inputs: uint8 or float [N, C, H, W], or any [N, ...]. Images stay uint8 until they are batched.
        targets: [N, ...]: int64 classes [N], or what another task has (``lit_fednas.data.tasks``).
        columns: Natural groupings of the examples (a speaker, a site, ...), each [N].

    Raises:
        DataError: Lengths differ.

    Example:
        >>> sites = {"site": np.array(["a", "a", "b"])}
        >>> len(Examples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 1]), sites))
        3
    """

    inputs: Tensor
    targets: Tensor
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {"targets": len(self.targets), **{name: len(col) for name, col in self.columns.items()}}
        for name, length in lengths.items():
            if length != len(self.inputs):
                raise DataError(f"{name}: {length} rows for {len(self.inputs)} inputs; give one row per input")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def first_not_finite(self) -> int | None:
        """Returns the first row whose input has a NaN or an infinity; ``None`` if there is none."""
        if not self.inputs.is_floating_point() or not len(self):
            return None
        low, high = self.inputs.aminmax()  # both are NaN if one element is; needs no memory
        if (low - high).isfinite():
            return None
        return int(self.inputs.flatten(1).isfinite().all(1).logical_not().nonzero()[0])

    def to(self, device: torch.device | str) -> Examples:
        """Returns the same examples with their tensors on ``device``."""
        return Examples(self.inputs.to(device), self.targets.to(device), self.columns)


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
