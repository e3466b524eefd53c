"""The contract of data sources, and their shared functions: class names, checks of files, and the cache."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, Literal

import numpy as np
import torch

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.tasks import Classification, Task
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.records.files import replacing

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
#: The folder of decoded files, beside the original ones.
CACHE = ".lit_fednas_cache"


class DataSource(ABC):
    """A source of examples, with the usual transforms of their inputs.

    The constructor only keeps settings. ``prepare`` runs once per node and may download or decode; ``load`` runs in
    every process of a run, which keeps the result, so that a source keeps no examples. The attributes can be read
    before all examples are decoded; a subclass sets them or overrides them by cached properties. ``normalization`` is
    read after ``train`` is loaded.

    Attributes:
        input_shape: The shape of one input: (C, H, W) for images.
        input_dtype: The type of batches: float32, or int64 if inputs are tokens.
        normalization: Converts inputs to float; None scales uint8 to [0, 1].
        augmentation: Applied to training batches, in this order, unless the data module disables it.
        preprocessing: The steps from a file's content to an input, which users of an exported network repeat.
    """

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype = torch.float32
    normalization: Normalize | None = None
    augmentation: Sequence[Augmentation] = ()
    preprocessing: Mapping[str, Any] = {}

    @cached_property
    def left_out(self) -> dict[Split, Counter[str]]:
        """The omissions of each split, counted by reason, such as ``.heic``, whenever the split is read."""
        return {split: Counter() for split in SPLITS}

    @property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The columns of a source's files by their role; empty if files have no columns."""
        return {}

    @cached_property
    def num_classes(self) -> int:
        """The number of classes; by default, of their names."""
        return len(self.class_names)

    @cached_property
    def task(self) -> Task:
        """The task of the targets; by default, one class per example."""
        return Classification(self.num_classes)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One name per class or other output; by default, their numbers."""
        return tuple(str(label) for label in range(self.task.num_outputs))

    def prepare(self, in_memory: bool = True) -> None:  # noqa: B027 - most sources have nothing to prepare
        """Downloads or decodes the data for ``load`` (``in_memory``) or for ``dataset``, if the source needs it."""

    @abstractmethod
    def load(self, split: Split) -> Examples | None:
        """Returns one split, in memory; None if the source lacks it. Raises DataError for unusable data."""

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split for reading example by example; sources that decode on access override this."""
        return self.load(split)

    def read_text(self, split: Split, count: int) -> str:
        """Returns a summary such as ``1,204 examples of 10 classes; 6 left out: 4 .heic, 2 hidden``."""
        text = f"{count:,} examples" + f" of {self.num_classes:,} classes" * self.task.has_classes
        if not (reasons := self.left_out[split]):
            return text
        counts = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
        return f"{text}; {reasons.total():,} left out: {counts}"


def named_classes(classes: Sequence[str] | None, labels: Iterable[str], origin: object) -> tuple[str, ...]:
    """Returns the configured classes, of which the data may lack some, or else the data's labels, alphabetically."""
    labels = sorted(labels)
    if classes is None:
        return tuple(labels)
    if duplicates := [name for name, count in Counter(classes).items() if count > 1]:
        raise ConfigError(f"data.source.classes: {duplicates[0]!r} is listed twice; list it once")
    if unlisted := [name for name in labels if name not in classes]:
        raise DataError(f"data.source.classes: {origin} has {unlisted[0]!r}, which is not listed; list all classes")
    return tuple(classes)


def of_large_clients(clients: np.ndarray, min_size: int) -> np.ndarray:
    """Returns a mask of the examples of clients with at least ``min_size`` examples, bool [N]."""
    _, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    return (sizes >= min_size)[codes]


@contextmanager
def reading(path: Path, field: str, remedy: str = "replace or remove the file") -> Iterator[None]:
    """Converts all errors of a library that reads a file to one line with the file's name.

    Raises:
        ConfigError: An error of this package, unchanged.
        DataError: The file is missing, is a pipe (which could block), changes meanwhile, or cannot be read.
    """
    try:
        stamp = _stamp(path)
        yield
        if _stamp(path) != stamp:
            raise DataError(f"{field}: {path} has changed while it was read; wait until it is complete")
    except (ConfigError, DataError):
        raise
    except FileNotFoundError:
        fault = "is a broken link" if path.is_symlink() else "is missing"
        raise DataError(f"{field}: {path} {fault}; correct the path") from None
    except Exception as error:  # decoders raise struct.error, zlib.error, KeyError, MemoryError...
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{field}: {path} cannot be read ({text}); {remedy}") from error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns size and modification time of a file; None for a folder."""
    status = path.stat()
    if S_ISDIR(status.st_mode):
        return None
    if not S_ISREG(status.st_mode):
        raise OSError("it is neither a file nor a folder")
    return status.st_size, status.st_mtime_ns


def require_separate(files: Mapping[str, Iterable[Path]]) -> None:
    """Validates that splits share no file, even by other names or links; missing files are not compared."""
    splits: dict[tuple[int, int], str] = {}
    for split, paths in files.items():
        for path in filter(os.path.exists, paths):
            status = path.stat()
            if (other := splits.setdefault((status.st_dev, status.st_ino), split)) != split:
                raise ConfigError(f"data.source: {path} is in both {other} and {split}; give each its own, or omit one")


def file_stamps(root: Path, names: Iterable[str]) -> list[tuple[int, int]]:
    """Returns size and modification time of files below ``root``, which must exist."""
    stamps = []
    for name in names:
        try:
            status = os.stat(os.path.join(root, name))
        except (OSError, ValueError) as error:
            raise DataError(f"data.source: {root / name} is missing; add it or correct its name") from error
        if not S_ISREG(status.st_mode):  # a folder, or a pipe, which could block
            raise DataError(f"data.source: {root / name} is not a file; move it away or correct the name")
        stamps.append((status.st_size, status.st_mtime_ns))
    return stamps


def files_in(folder: Path, accepts: Callable[[str], bool], omissions: Counter[str]) -> list[str]:
    """Returns the sorted names of a folder's files with accepted paths, and counts the others by reason."""
    names = []
    with reading(folder, "data.source.root", "correct or move it away"):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if not (hidden := name.startswith(".")) and not os.path.isfile(path):
                raise DataError(f"data.source.root: {path} is not a file; move it away")
            if not hidden and accepts(path):
                names.append(name)
            else:
                omissions[kind_of(name)] += 1
    return names


def kind_of(name: str) -> str:
    """Returns the reason to omit a file: its suffix in lower case, or ``hidden``."""
    return "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower() or "without a suffix"


def cached(
    root: Path,
    stem: str,
    content: str,
    shape: tuple[int, ...],
    compute: Callable[[], np.ndarray],
    dtype: type[np.generic] = np.uint8,
) -> np.ndarray:
    """Returns the array that is computed from files below ``root``, loaded from or saved to an ``.npz`` file."""
    name = f"{stem}-{_digest(content)[:32]}.npz"  # uncompressed, with a checksum
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lit_fednas"
    folders = [root / CACHE, user / _digest(str(root.resolve()))[:16]]
    # other users may have planted links to files of theirs
    folders = [folder for folder in folders if not folder.is_symlink() and not (folder / name).is_symlink()]
    for folder in folders:
        with suppress(Exception):  # the file may be missing or damaged
            array: np.ndarray = np.load(folder / name, allow_pickle=False)["array"]
            if array.shape == shape and array.dtype == dtype:
                return array
    array = compute()
    for folder in folders:
        with suppress(OSError):  # the folder may be read-only
            with replacing(folder / name) as file:
                np.savez(file, array=array)
            for old in folder.glob(f"{stem}-*.np[yz]"):  # outdated cache files
                if old.name != name:
                    old.unlink(missing_ok=True)
            break
    return array


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
