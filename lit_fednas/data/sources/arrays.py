"""Sources of arrays in memory, and of arrays and tables in files: .npz, .npy, .csv and .parquet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.data.examples import Examples, missing
from lit_fednas.data.sources.base import SPLITS, DataSource, Split, reading, require_separate
from lit_fednas.data.sources.tables import Table, read_table
from lit_fednas.data.tasks import MOST_CLASSES, Classification, Regression, Task, require_few
from lit_fednas.data.transforms import Augmentation, Normalize, as_float
from lit_fednas.errors import ConfigError, DataError, require_different
from lit_fednas.ranges import checked

#: The setting that names files.
FILES = "data.source.files"
#: Inputs, targets (numbers), natural groupings.
Arrays = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]

log = logging.getLogger(__name__)


class ArraySource(DataSource):
    """A source of tensors in memory, which each process of a run makes for itself.

    Args:
        train: The training examples.
        val: The validation examples; None lets the data module take them from ``train``.
        test: The test examples, if there is a test split.
        class_names: One name per class; None numbers the classes.
        normalization: Applied to inputs; None scales uint8 to [0, 1] and keeps floats.
        augmentation: Applied to training batches, in this order.
        task: The task of the targets; None is one class per example, up to the largest training target.

    Raises:
        ConfigError: The number of class names differs from that of the classes.
        DataError: A split is empty. A data module validates targets and inputs.
    """

    def __init__(
        self,
        train: Examples,
        val: Examples | None = None,
        test: Examples | None = None,
        class_names: Sequence[str] | None = None,
        normalization: Normalize | None = None,
        augmentation: Sequence[Augmentation] = (),
        task: Task | None = None,
    ) -> None:
        if not len(train):
            raise DataError("train: has no examples; give at least one")
        self._splits: dict[str, Examples | None] = {"train": train, "val": val, "test": test}
        if task is None:
            Classification(1).check(train.targets[:0])  # classes cannot be counted in other types
            require_few(count := int(train.targets.max()) + 1, len(train), "task: the targets of train")
        self.task = Classification(count) if task is None else task
        self.num_classes = self.task.num_outputs
        self.input_shape = tuple(train.inputs.shape[1:])
        self.input_dtype = as_float(train.inputs[:1]).dtype if normalization is None else torch.float32
        self.class_names = tuple(class_names or map(str, range(self.num_classes)))
        self.normalization = normalization
        self.augmentation = tuple(augmentation)
        if len(self.class_names) != self.num_classes:
            count = len(self.class_names)
            raise ConfigError(f"class_names: {count} names for {self.num_classes} classes; give one per class")
        for split, examples in self._splits.items():
            if examples is not None and not len(examples):
                raise DataError(f"{split}: has no examples; leave it out")

    @override
    def load(self, split: Split) -> Examples | None:
        return self._splits[split]


def _of_files(name: str) -> Any:
    """Returns a property of :class:`ArrayFiles`, which is an attribute of the examples' source."""
    return property(lambda files: getattr(files._read[0], name), doc=f"The ``{name}`` of the examples in the files.")


@checked("data.source")
class ArrayFiles(DataSource):
    """Examples from a file per split: arrays of inputs and targets, or a table with a row per example.

    An array file is ``.npz`` with the keys ``inputs`` and ``targets``, or a folder with ``inputs.npy`` and
    ``targets.npy``. Their first axis counts the examples. uint8 inputs stay uint8, floats become float32, and other
    integers become int64 and are taken for tokens.

    A table is ``.csv`` or, with ``pip install 'lit-fednas[tables]'``, ``.parquet``, which is read like the same
    ``.csv``. All its inputs become float32. If a row of the target's column holds text, all values of the column are
    class names, in alphabetical order. Clients and categories differ if their texts do: ``007`` is not ``7``.

    Args:
        files: The file or folder of ``train`` and, if they exist, of ``val`` and ``test``.
        target: For tables: the target's column, or several columns for several numbers or labels.
        client: The clients' column, key or file ``<client>.npy``, which becomes a grouping for ``ByColumn``.
        inputs: For tables: the input columns; None takes all except target and client.
        categorical: For tables: the input columns that become one column of 0 and 1 per value in ``train``.
        standardize: Whether channels (columns of tables, except those of 0 and 1) are transformed to mean 0 and
            standard deviation 1 in ``train``; constant channels become 0.
        task: The task of the targets; None is one class per example for whole numbers, text and booleans, and
            regression for floats.
        augmentation: Applied to training batches, in this order.
        classes: For tables: the names of all classes, in order; None takes those of ``train``. Required on devices
            with their own data, which may lack some.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        target: str | Sequence[str] = "target",
        client: str | None = None,
        inputs: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        standardize: bool = False,
        task: Task | None = None,
        augmentation: Sequence[Augmentation] = (),
        classes: Sequence[str] | None = None,
    ) -> None:
        if "train" not in files or not set(files) <= set(SPLITS):
            raise ConfigError(f"{FILES}: {sorted(files)} are not the splits; give train, and val and test")
        self.files = {split: Path(files[split]).expanduser() for split in SPLITS if split in files}
        self.target = [target] if isinstance(target, str) else list(target)
        self.client = client
        self.inputs = inputs
        self.classes = classes
        self.categorical = categorical
        self.standardize = standardize
        self.augmentation = tuple(augmentation)
        self._task = task

    task = _of_files("task")
    num_classes = _of_files("num_classes")
    class_names = _of_files("class_names")
    input_shape = _of_files("input_shape")
    input_dtype = _of_files("input_dtype")
    normalization = _of_files("normalization")
    preprocessing = _of_files("preprocessing")

    @property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The columns of tables by their role."""
        table = self._read[1]
        return {} if table is None else table.kinds

    @override
    def load(self, split: Split) -> Examples | None:
        return self._read[0].load(split)

    @cached_property
    def _read(self) -> tuple[ArraySource, Table | None]:
        """The source of all splits, validated, and the roles of columns if they are tables."""
        require_separate({split: [file] for split, file in self.files.items()})
        path, table, names, indicators = self.files["train"], None, None, 0
        origin = f"{FILES}: targets of {path}"
        of_tables = {split: file.suffix.lower() in (".csv", ".parquet") for split, file in self.files.items()}
        for split, is_table in of_tables.items():
            if is_table != of_tables["train"]:
                raise DataError(f"{FILES}: {self.files[split]} and {path} are not of one kind; give tables or arrays")
        if of_tables["train"]:
            frame = self._frame(path)
            table = Table(frame, path, self.target, self.client, self.inputs, self.categorical, self.classes)
            frames = {split: frame if file == path else self._frame(file) for split, file in self.files.items()}
            parts = {split: table.arrays(frames[split], file) for split, file in self.files.items()}
            origin = f"data.source.target: {self.target} of {path}"
            names, indicators = table.classes, table.num_indicators
        elif self.inputs is None and not self.categorical and self.classes is None:
            parts = {split: _read_arrays(file, self.client) for split, file in self.files.items()}
        else:
            raise ConfigError(f"data.source.inputs: {path} has no columns; leave out inputs, categorical and classes")
        classification = None if self.classes is None else Classification(len(self.classes))
        task = self._task or classification or _task(parts["train"][1], origin)
        if names and not task.labelled:
            fault = f"{type(task).__name__} needs numbers, but {self.target[0]!r} of {path} holds text"
            raise ConfigError(f"data.source.task: {fault}; leave out task, or name another target")
        splits = {
            split: Examples(_inputs(inputs), _targets(targets, task), columns)
            for split, (inputs, targets, columns) in parts.items()
        }
        normalization = _standardization(splits["train"].inputs, indicators) if self.standardize else None
        source = ArraySource(**splits, class_names=names, normalization=normalization, task=task)  # type: ignore[arg-type]
        if table is not None:
            source.preprocessing = {"columns": table.numeric, "a column of 0 and 1 per value": table.values}
        return source, table

    def _frame(self, path: Path) -> Any:
        classes = self.target if len(self.target) == 1 else []
        return read_table(path, FILES, [*classes, self.client, *self.categorical])


def _standardization(inputs: Tensor, num_indicators: int) -> Normalize:
    if inputs.ndim < 2 or inputs.dtype == torch.int64:
        shape, dtype = tuple(inputs.shape), inputs.dtype
        raise ConfigError(f"data.source.standardize: {dtype} inputs {shape} have no channels of numbers; leave it out")
    if not inputs.isfinite().all():
        raise DataError(f"{FILES}: train holds NaN or infinity; correct or remove these examples")
    return Normalize.of(inputs, num_indicators)


def _task(targets: np.ndarray, origin: str) -> Task:
    """Returns the usual task for targets of this type."""
    if targets.dtype.kind == "f":
        if (targets % 1 == 0).all():
            log.warning("%s are floats, which are taken for numbers to predict; write classes as whole numbers", origin)
        return Regression(1 if targets.ndim == 1 else targets.shape[1])
    if targets.ndim == 2:
        raise DataError(f"{origin} have shape {targets.shape}; give one class per example, or a task like MultiLabel")
    count = 1 + int(targets.max(initial=0))
    require_few(count, len(targets), origin)
    return Classification(count)


def _inputs(inputs: np.ndarray) -> Tensor:
    with np.errstate(over="ignore"):  # infinity is refused later
        if inputs.dtype.kind in "fb":
            return torch.from_numpy(inputs.astype(np.float32, copy=False))
    return torch.from_numpy(inputs if inputs.dtype == np.uint8 else inputs.astype(np.int64, copy=False))


def _targets(targets: np.ndarray, task: Task) -> Tensor:
    with np.errstate(over="ignore"):
        if not task.has_classes:
            return torch.from_numpy(targets.astype(np.float32).reshape(len(targets), -1))
        if targets.dtype.kind == "f" and (targets % 1 == 0).all() and (np.abs(targets) <= MOST_CLASSES).all():
            targets = targets.astype(np.int64)
    return torch.from_numpy(targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64))


def _read_arrays(path: Path, client: str | None) -> Arrays:
    """Returns inputs, targets and clients of an .npz file or a folder of .npy files."""
    names = ["inputs", "targets", *([client] if client else [])]
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.glob("*.npy"))}
        _require_names(names, list(files), path)
        arrays = {name: _read_array(files[name]) for name in names}
    elif path.suffix.lower() != ".npz":
        raise DataError(f"{FILES}: {path} is not a folder, .npz, .csv or .parquet; give one of them")
    else:
        with reading(path, FILES), np.load(path) as archive:
            _require_names(names, archive.files, path)
            if damaged := archive.zip.testzip():  # numpy may not compare the checksums
                raise ValueError(f"the checksum of {damaged} differs")
            arrays = {name: np.asarray(archive[name]) for name in names}  # numpy returns other content as bytes
    for name, array in arrays.items():
        _check_array(array, name, path)
    if len(set(map(len, arrays.values()))) > 1:
        lengths = ", ".join(f"{len(array)} {name}" for name, array in arrays.items())
        raise DataError(f"{FILES}: {path} has {lengths}; give one of each per example")
    return arrays["inputs"], arrays["targets"], {client: arrays[client]} if client else {}


def _require_names(names: Sequence[str], keys: Sequence[str], path: Path) -> None:
    require_different(keys, FILES, path)
    if absent := [name for name in names if name not in keys]:
        raise DataError(f"{FILES}: {path} has no {absent[0]!r}, only {', '.join(keys)}; add it")


def _read_array(path: Path) -> np.ndarray:
    with reading(path, FILES):
        array = np.load(path, mmap_mode="r")
        if array.offset + array.nbytes != path.stat().st_size:
            raise ValueError(f"an array of shape {array.shape} and type {array.dtype} is shorter")
        return np.array(array)


def _check_array(array: np.ndarray, name: str, path: Path) -> None:
    kinds, min_axes, max_axes, form = {
        "inputs": ("biuf", 2, 32, "numbers [N, ...]"),
        "targets": ("biuf", 1, 2, "numbers [N] or [N, outputs]"),
    }.get(name, ("biufSUMm", 1, 1, "numbers or text [N]"))
    if array.dtype.kind not in kinds or not min_axes <= array.ndim <= max_axes or 0 in array.shape:
        raise DataError(f"{FILES}: {path} has {name} of type {array.dtype} and shape {array.shape}; give {form}")
    if name not in ("inputs", "targets") and (empty := missing(array)).any():
        raise DataError(f"{FILES}: {path} has no value of {name!r} in row {int(empty.argmax())}; fill it in")
