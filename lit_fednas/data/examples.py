"""Examples of one split, and the readers that turn rows into batches."""

from __future__ import annotations

import hashlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lit_fednas.data.tasks import Task
from lit_fednas.data.transforms import Augmentation, as_float
from lit_fednas.errors import DataError
from lit_fednas.rng import generator

Batch = tuple[Tensor, Tensor]

#: Bytes of float32 inputs that ``TensorReader`` gathers, augments and normalises at once.
CHUNK_BYTES = 16 * 2**20

#: Number of inputs in the digest of a split: in memory, and decoded on access.
_DIGEST_INPUTS, _DIGEST_DECODED = 1024, 4
#: Splits with more bytes of inputs are not searched for copies, which would take seconds.
_MAX_COMPARED_BYTES = 2**31
#: A larger ratio between the standard deviations of two splits raises a warning.
_MAX_SPREAD_RATIO = 4.0

log = logging.getLogger(__name__)


class ExampleDataset(Protocol):
    """A map-style data set that knows all targets before it decodes inputs: ``Examples``, or ``LazyImages``."""

    @property
    def targets(self) -> Tensor:
        """The targets [N, ...]."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Natural groupings, each [N]."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets of one split, in memory.

    Attributes:
        inputs: uint8 or float [N, C, H, W], or any [N, ...]. Images stay uint8 until they are batched.
        targets: int64 classes [N], or another task's targets [N, ...].
        columns: Natural groupings of the examples (a speaker, a site, ...), each [N]; text is stripped of white space.
    """

    inputs: Tensor
    targets: Tensor
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes: dict[str, tuple[int, ...]] = {"inputs": self.inputs.shape, "targets": self.targets.shape}
        shapes.update({name: np.shape(column) for name, column in self.columns.items()})
        for name, shape in shapes.items():
            if not shape or (name in self.columns and len(shape) > 1):
                raise DataError(f"{name}: shape {tuple(shape)} does not have one row per example; give one per input")
            if shape[0] != len(self.inputs):
                raise DataError(f"{name}: {shape[0]} rows for {len(self.inputs)} inputs; give one row per input")
        stripped = {name: _stripped(np.asarray(column)) for name, column in self.columns.items()}
        object.__setattr__(self, "columns", stripped)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def first_not_finite(self) -> int | None:
        """Returns the first row with NaN or infinity in its input; ``None`` if all inputs are finite."""
        if not self.inputs.is_floating_point() or not len(self):
            return None
        low, high = self.inputs.aminmax()  # both are NaN if any element is; a mask would need memory
        if (low - high).isfinite():
            return None
        return int(self.inputs.flatten(1).isfinite().all(1).logical_not().nonzero()[0])

    def to(self, device: torch.device | str) -> Examples:
        """Returns the same examples with their tensors on ``device``."""
        return Examples(self.inputs.to(device), self.targets.to(device), self.columns)


def missing(column: np.ndarray) -> np.ndarray:
    """Returns a mask of a column's missing values, bool ``[N]``: NaN, NaT, None, and text or bytes of white space."""
    import pandas as pd  # takes a while to import

    empty = np.asarray(pd.isna(column))
    if column.dtype.kind in "OSU":
        blank = (isinstance(value, str | bytes) and not value.strip() for value in column)
        empty |= np.fromiter(blank, dtype=bool, count=len(column))
    return empty


def _stripped(column: np.ndarray) -> np.ndarray:
    """Returns a column without the white space around its text; bytes become text."""
    if column.dtype.kind == "O":
        values = (value.strip() if isinstance(value, str | bytes) else value for value in column)
        return np.fromiter(values, dtype=object, count=len(column))
    if column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8", "backslashreplace")
    return np.char.strip(column) if column.dtype.kind == "U" else column


def check_inputs(data: ExampleDataset, split: str, shape: Sequence[int], train: ExampleDataset) -> None:
    """Validates shape and type of a split's inputs; warns if their scale differs from that of the training inputs."""
    inputs, reference = sample_of(data), sample_of(train)
    dtype, train_dtype = (str(part.dtype).removeprefix("torch.") for part in (inputs, reference))
    kind, train_kind = (_kind(part.dtype) for part in (inputs, reference))
    fault = ""
    if inputs.shape[1:] != tuple(shape):
        fault = f"instead of {list(shape)}; give the same shape as in train"
    elif len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] == shape[1] > 4:
        fault = "with the channels last; put them first, as numpy.moveaxis(inputs, -1, 1) does"
    elif len(shape) == 3 and kind == "tokens":
        fault = "and whole numbers other than uint8 are tokens; save images as uint8, or as floats from 0 to 1"
    elif kind != train_kind:
        fault = f"and those of train are {train_dtype}; save both as one type, on the same scale"
    if fault:
        raise DataError(f"data.source: {split} has inputs of type {dtype} and shape {list(inputs.shape[1:])}, {fault}")
    if len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) > 4:
        log.warning("data.source: %s has inputs of shape %s, read as %d channels", split, list(shape), shape[0])
    parts = [(part.float().std(correction=0), *part.aminmax()) for part in (inputs, reference)]
    (spread, *bounds), (train_spread, *train_bounds) = ([float(value) for value in part] for part in parts)
    if kind != "tokens" and spread and train_spread:
        signs_differ = len(shape) == 3 and (bounds[0] < 0) != (train_bounds[0] < 0)
        if signs_differ or not 1 / _MAX_SPREAD_RATIO <= spread / train_spread <= _MAX_SPREAD_RATIO:
            text = "data.source: %s has inputs from %g to %g, and train from %g to %g; scale them alike"
            log.warning(text, split, *bounds, *train_bounds)


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "numbers"
    return "pixels" if dtype in (torch.uint8, torch.bool) else "tokens"


def sample_of(data: ExampleDataset) -> Tensor:
    """Returns up to 256 inputs, evenly spread over a data set; one if the data set decodes on access."""
    if not isinstance(data, Examples):
        return data[0][0][None]
    return data.inputs[torch.linspace(0, len(data) - 1, min(256, len(data))).long()]


def copies_in(splits: Mapping[str, ExampleDataset], task: Task) -> str | None:
    """Describes equal inputs of splits, ``train`` first; returns ``None`` if they are too large or not in memory."""
    examples = {split: data for split, data in splits.items() if isinstance(data, Examples)}
    if len(examples) < len(splits) or sum(data.inputs.nbytes for data in examples.values()) > _MAX_COMPARED_BYTES:
        return None
    contents, texts = {split: _contents(data.inputs) for split, data in examples.items()}, []
    distinct = np.unique(contents["train"])
    for split, part in contents.items():
        if count := len(part) - len(distinct) if split == "train" else np.count_nonzero(np.isin(part, distinct)):
            origin = "others" if split == "train" else "training examples"
            texts.append(f"{count:,} of {len(part):,} examples of {split} are copies of {origin}")
    classes = np.concatenate([task.strata(data.targets).cpu().numpy() for data in examples.values()])
    _, codes = np.unique(np.concatenate([*contents.values()]), return_inverse=True)
    pairs = np.unique(codes * (classes.max() + 1) + classes)  # one number per pair of content and class
    if count := np.count_nonzero(np.bincount(pairs // (classes.max() + 1)) > 1):
        texts.append(f"{count:,} different inputs have several classes")
    return "; ".join(texts)


def _contents(inputs: Tensor) -> np.ndarray:
    """Returns a hash of each input's content, int64 ``[N]``."""
    plain = (inputs.float() if inputs.is_floating_point() else inputs).cpu().numpy()
    rows = np.ascontiguousarray(plain.reshape(len(plain), -1))
    rows = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    parts = np.array_split(rows, 1 + inputs.nbytes // CHUNK_BYTES)  # tolist copies the bytes of a part
    return np.concatenate([np.fromiter(map(hash, part.tolist()), np.int64, len(part)) for part in parts])


def content_of(data: ExampleDataset) -> dict[str, Any]:
    """Returns the fingerprint of a split: its size, and digests of its targets, groupings and inputs.

    Digests a sample of inputs in memory, but the names and stamps of files that are decoded on access.
    """
    count = _DIGEST_INPUTS if isinstance(data, Examples) else _DIGEST_DECODED
    rows = np.unique(np.linspace(0, len(data) - 1, count).astype(int))
    if isinstance(data, Examples):
        inputs: list[Any] = [data.inputs[torch.from_numpy(rows)]]
    elif hasattr(data, "stamps"):
        names = "\n".join(map(str, getattr(data, "names", ())))
        inputs = [np.frombuffer(names.encode(errors="surrogateescape"), np.uint8), np.asarray(data.stamps)]
    else:
        inputs = [data[int(row)][0] for row in rows]
    groupings = [np.asarray(part) for name, column in sorted(data.columns.items()) for part in (name, column)]
    parts: dict[str, list[Any]] = {"targets": [data.targets], "groupings": groupings, "inputs": inputs}
    return {"examples": len(data), **{name: _digest(arrays) for name, arrays in parts.items()}}


def _digest(arrays: Sequence[Any]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for array in arrays:
        plain = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
        digest.update(str(plain.shape).encode())
        digest.update(np.ascontiguousarray(plain.astype(str) if plain.dtype.kind == "O" else plain).tobytes())
    return digest.hexdigest()


@dataclass(eq=False)
class Reader(ABC):
    """Reads batches of a data set by row number, applies the augmentations in their order, and normalises."""

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
        """Yields batches of the rows in their order; augments them only if there is a generator."""

    def move_to(self, device: torch.device | str) -> None:
        """Moves data in memory to ``device``; all later batches are on it."""
        self.device = torch.device(device)
        self.close()

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """Ends the reading processes, if any; the next pass starts them again."""

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
        limit = CHUNK_BYTES // max(1, 4 * inputs[:1].numel())
        chunk_size = max(batch_size, limit // batch_size * batch_size)
        for chunk in rows.to(inputs.device).split(chunk_size) if len(rows) else ():
            raw, labels = inputs.index_select(0, chunk), targets.index_select(0, chunk).to(self.device)
            ready = self._finish(raw.to(self.device), generator)
            yield from zip(ready.split(batch_size), labels.split(batch_size), strict=True)

    @override
    def move_to(self, device: torch.device | str) -> None:
        super().move_to(device)
        if self.device.type == "cuda":  # larger data would leave too little memory: batches are moved instead
            size, (free, _) = self.dataset.inputs.nbytes, torch.cuda.mem_get_info(self.device)
            if size > free / 2:
                sizes = size / 1e9, free / 1e9
                log.info("data: %.1f GB stay in the CPU's memory; %.1f GB are free on the GPU", *sizes)
                return
        self.dataset = self.dataset.to(device)


@dataclass(eq=False)
class LoaderReader(Reader):
    """Reads through a torch DataLoader, for data that do not fit in memory.

    The workers serve the newest pass. An earlier, unfinished pass reads the rest of its batches in this process.
    Batches are augmented one by one; :class:`TensorReader` augments many at once. With equal generators, both readers
    give the same order but different crops and flips.

    Args:
        dataset: The data set, with a raw input and a target per row.
        normalize: Converts a raw batch to float32; the default scales uint8 to [0, 1] and keeps other integers.
        augmentation: Applied to raw batches, in this order.
        num_workers: Number of decoding processes, which live as long as the reader; 0 decodes in this process.
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
        pass_number = self._passes
        batches = [part.tolist() for part in rows.split(batch_size) if len(part)]
        loader, position = self._loader_of(batches, 0), 0
        if self.num_workers:
            if self._loader is None:
                self._loader = self._loader_of(self._batches, self.num_workers)
            self._batches[:] = batches  # the DataLoader holds this list
            loader = self._loader
        while position < len(batches):
            for raw, labels in loader:
                raw, labels = raw.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
                position += 1
                yield self._finish(raw, generator), labels
                if loader.num_workers and pass_number != self._passes:
                    break
            loader = self._loader_of(batches[position:], 0)

    def _loader_of(self, batches: list[list[int]], num_workers: int) -> DataLoader[Any]:
        return DataLoader(
            cast(Dataset[Any], self.dataset),
            batch_sampler=batches,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # the default would draw from the global generator
        )

    @override
    def close(self) -> None:
        self._loader = None


class EvalBatches:
    """Batches of some rows for validation and test loops, never augmented."""

    # Data sets are often sorted by class, and some networks normalise by a batch's own statistics. Batches therefore
    # mix the rows in a random order, which is the same in every run, and have nearly equal sizes: none is one example.

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

    def part(self, share: float) -> EvalBatches:
        """Returns the batches of a uniformly drawn share of the rows, at least one row."""
        count = math.ceil(share * len(self.rows))
        return self if count == len(self.rows) else EvalBatches(self.reader, self.rows[:count], self.batch_size)
