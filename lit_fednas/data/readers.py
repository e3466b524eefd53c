"""Readers turn rows of one data set into normalised batches: from one tensor, or through a DataLoader."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.transforms import Augmentation, as_float
from lit_fednas.rng import generator

Batch = tuple[Tensor, Tensor]

#: Examples whose float32 inputs fit in this many bytes are gathered, augmented and normalised at once.
CHUNK_BYTES = 16 * 2**20

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Reader(ABC):
    """Reads batches of a data set by row number; raw batches are augmented, in this order, and then normalised."""

    dataset: ExampleDataset
    normalize: Callable[[Tensor], Tensor] = as_float
    augmentation: Sequence[Augmentation] = ()

    def __post_init__(self) -> None:
        self.device = self.dataset.targets.device

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def targets(self) -> Tensor:
        """The targets of all examples, [N, ...]."""
        return self.dataset.targets

    @abstractmethod
    def read(self, rows: Tensor, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Yields the rows in their order, ``batch_size`` at a time; without a generator they are not augmented."""

    def move_to(self, device: torch.device | str) -> None:
        """Moves the data, where in memory; all later batches are on ``device``."""
        self.device = torch.device(device)

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """Ends the processes that read, if any; the next pass starts them again."""

    def _finish(self, raw: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is not None:
            for augment in self.augmentation:
                raw = augment(raw, generator)
        return self.normalize(raw)


class TensorReader(Reader):
    """Reads from one tensor: one gather per chunk of batches; the batches are views of the chunk.

    Example:
        >>> examples = Examples(torch.arange(5.0).view(5, 1), torch.arange(5))
        >>> [y.tolist() for x, y in TensorReader(examples).read(torch.tensor([4, 0, 2]), 2)]
        [[4, 0], [2]]
    """

    dataset: Examples

    @override
    def read(self, rows: Tensor, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        inputs, targets = self.dataset.inputs, self.dataset.targets
        at_once = CHUNK_BYTES // max(1, 4 * inputs[:1].numel())
        chunk_size = max(batch_size, at_once // batch_size * batch_size)
        for chunk in rows.to(inputs.device).split(chunk_size) if len(rows) else ():
            raw, labels = inputs.index_select(0, chunk), targets.index_select(0, chunk).to(self.device)
            ready = self._finish(raw.to(self.device), generator)
            yield from zip(ready.split(batch_size), labels.split(batch_size), strict=True)

    @override
    def move_to(self, device: torch.device | str) -> None:
        super().move_to(device)
        if self.device.type == "cuda":  # at most half of the free memory is taken; else batches are moved
            size, (free, _) = self.dataset.inputs.nbytes, torch.cuda.mem_get_info(self.device)
            if size > free / 2:
                sizes = size / 1e9, free / 1e9
                log.info("data: %.1f GB stay in the CPU's memory; %.1f GB are free on the GPU", *sizes)
                return
        self.dataset = self.dataset.to(device)


@dataclass(eq=False)
class LoaderReader(Reader):
    """Reads through a torch DataLoader, for data that do not fit in memory.

    The DataLoader's workers live as long as the reader, so that no client waits for their start; only one pass can be
    under way: a new one ends the old. Batches are augmented one by one, where ``TensorReader`` augments many at once,
    so that equal generators give the same order, but other crops and flips.

    Args:
        dataset: Gives a raw input and a target per row number.
        normalize: Makes a raw batch float32; by default it scales uint8 to [0, 1], and leaves other integers.
        augmentation: Applied to the raw batch, in this order.
        num_workers: Processes that decode; 0 decodes in this one.
    """

    num_workers: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._passes = 0
        self._batches: list[list[int]] = []  # the rows of each batch of a pass
        self._loader: DataLoader[Any] | None = None

    @override
    def read(self, rows: Tensor, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        self._passes += 1
        number = self._passes
        for raw, labels in self._loaded([part.tolist() for part in rows.split(batch_size) if len(part)]):
            raw, labels = raw.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            yield self._finish(raw, generator), labels
            if self.num_workers and number != self._passes:
                raise RuntimeError("a new pass began before this one ended; end it, or use no workers")

    @override
    def move_to(self, device: torch.device | str) -> None:
        super().move_to(device)
        self.close()

    @override
    def close(self) -> None:
        self._loader = None

    def _loaded(self, batches: list[list[int]]) -> Iterator[Batch]:
        if self._loader is None or not self.num_workers:
            self._batches = []
            self._loader = DataLoader(
                cast(Dataset[Any], self.dataset),
                batch_sampler=self._batches,
                num_workers=self.num_workers,
                persistent_workers=self.num_workers > 0,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # else every pass would draw from the global one
            )
        self._batches[:] = batches  # the DataLoader's own list
        return iter(self._loader)


class EvalBatches:
    """All batches of some rows, never augmented: what validation and test loops take."""

    # Networks that normalise by a batch's own statistics need a fair mix: rows are in one random order, the same in
    # every run, as data sets are often sorted by class, and batches of near-equal size, none of them a lone example.

    def __init__(self, reader: Reader, rows: Tensor | None, batch_size: int) -> None:
        self.reader = reader
        rows = torch.arange(len(reader)) if rows is None else rows
        self.rows = rows[torch.randperm(len(rows), generator=generator(0, "evaluation-order"))]
        self._length = -(-len(rows) // batch_size)
        self.batch_size = -(-len(rows) // max(1, self._length))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self.reader.read(self.rows, self.batch_size)
