"""The contract of all data sources, and what several of them share: clients' sizes, normalisation and the cache."""

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
#: The folder of decoded files beside them.
CACHE = ".lit_fednas_cache"


class DataSource(ABC):
    """Where examples come from, and what is usually done to them.

    The constructor keeps settings and nothing else. ``prepare`` runs once per node and may download or decode; ``load``
    runs in every process of a run, which keeps what it returns, so that a source keeps no examples. The attributes are
    known without decoding all examples; a subclass sets them or overrides them by cached properties. ``normalization``
    is read after ``train`` is loaded.

    Attributes:
        num_classes: The number of classes.
        task: What targets are; one class per example, unless a source says otherwise.
        input_shape: The shape of one input: (C, H, W) for images.
        input_dtype: The type of batches: float32, or int64 where inputs are tokens.
        normalization: What makes inputs float; None scales uint8 to [0, 1].
        augmentation: What is usually done to training batches, in this order.
        preprocessing: The steps from a file's content to an input, which users of an exported network repeat.
    """

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype = torch.float32
    normalization: Normalize | None = None
    augmentation: Sequence[Augmentation] = ()
    preprocessing: Mapping[str, Any] = {}

    @cached_property
    def left_out(self) -> dict[Split, Counter[str]]:
        """What of each split is not among its examples, by reason, such as ``.heic``; set anew whenever it is read."""
        return {split: Counter() for split in SPLITS}

    @property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The columns of a source's files by what they are taken for; none where files have no columns."""
        return {}

    @cached_property
    def num_classes(self) -> int:
        """The number of names, where a subclass has names alone."""
        return len(self.class_names)

    @cached_property
    def task(self) -> Task:
        """What targets are."""
        return Classification(self.num_classes)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One name per class or other output; their numbers, where a subclass has ``num_classes`` or ``task`` alone."""
        return tuple(str(label) for label in range(self.task.num_outputs))

    def prepare(self, in_memory: bool = True) -> None:  # noqa: B027 - most sources have nothing to prepare
        """Downloads or decodes, if the source needs it, what ``load`` will read if ``in_memory``, else ``dataset``."""

    @abstractmethod
    def load(self, split: Split) -> Examples | None:
        """Returns one split, in memory; None where there is none. Raises DataError for data that cannot be used."""

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split for reading example by example; sources that decode on access override this."""
        return self.load(split)

    def read_text(self, split: Split, count: int) -> str:
        """Returns what was read of a split, as ``1,204 examples of 10 classes; 6 left out: 4 .heic, 2 hidden``."""
        text = f"{count:,} examples" + f" of {self.num_classes:,} classes" * self.task.has_classes
        if not (reasons := self.left_out[split]):
            return text
        shown = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
        return f"{text}; {reasons.total():,} left out: {shown}"


def named_classes(given: Sequence[str] | None, found: Iterable[str], place: object) -> tuple[str, ...]:
    """Returns the classes that are given, of which the data may lack some, or those that were found, alphabetically."""
    found = sorted(found)
    if given is None:
        return tuple(found)
    if twice := [name for name, count in Counter(given).items() if count > 1]:
        raise ConfigError(f"data.source.classes: {twice[0]!r} is listed twice; list it once")
    if others := [name for name in found if name not in given]:
        raise DataError(f"data.source.classes: {place} has {others[0]!r}, which is not listed; add it, or remove these")
    return tuple(given)


def of_large_clients(clients: np.ndarray, least: int) -> np.ndarray:
    """Returns which examples belong to a client with ``least`` examples or more: bool [N]."""
    _, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    return (sizes >= least)[codes]


@contextmanager
def reading(path: Path, field: str, remedy: str = "replace or remove the file") -> Iterator[None]:
    """Makes one line with the file's name of whatever a library raises while it reads a file, which must not change.

    A pipe, whose reader may wait for ever, is not read.

    Raises:
        ConfigError: One of this package's own errors, as it is.
        DataError: The file is missing, is not a file, changes, or cannot be read.
    """
    try:
        stamp = _stamp(path)
        yield
        if _stamp(path) != stamp:
            raise DataError(f"{field}: {path} has changed while it was read; wait until it is complete")
    except (ConfigError, DataError):
        raise
    except FileNotFoundError:
        what = "is a link that leads nowhere" if path.is_symlink() else "is missing"
        raise DataError(f"{field}: {path} {what}; correct the path") from None
    except Exception as error:  # decoders raise what they like: struct.error, zlib.error, KeyError, MemoryError...
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{field}: {path} cannot be read ({text}); {remedy}") from error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns size and modification time of a file, None of a folder."""
    status = path.stat()
    if S_ISDIR(status.st_mode):
        return None
    if not S_ISREG(status.st_mode):
        raise OSError("it is neither a file nor a folder")
    return status.st_size, status.st_mtime_ns


def require_separate(files: Mapping[str, Iterable[Path]]) -> None:
    """Validates that no file, by whatever name or link, is of two splits; those that are missing are not compared."""
    splits: dict[tuple[int, int], str] = {}
    for split, paths in files.items():
        for path in filter(os.path.exists, paths):
            status = path.stat()
            if (other := splits.setdefault((status.st_dev, status.st_ino), split)) != split:
                raise ConfigError(
                    f"data.source: {path} is of both {other} and {split}; give each its own, or leave one out"
                )


def file_stamps(root: Path, names: Iterable[str]) -> list[tuple[int, int]]:
    """Returns size and modification time of files below ``root``, which must exist."""
    stamps = []
    for name in names:
        try:
            status = os.stat(os.path.join(root, name))
        except (OSError, ValueError) as error:
            raise DataError(f"data.source: {root / name} is missing; add it or correct its name") from error
        if not S_ISREG(status.st_mode):  # a pipe, whose reader would wait, or a folder
            raise DataError(f"data.source: {root / name} is not a file; move it away or correct the name")
        stamps.append((status.st_size, status.st_mtime_ns))
    return stamps


def files_in(folder: Path, wanted: Callable[[str], bool], left_out: Counter[str]) -> list[str]:
    """Returns the names of a folder's files that are wanted, given their paths, and counts the others by reason."""
    names = []
    with reading(folder, "data.source.root", "correct or move it away"):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if not (hidden := name.startswith(".")) and not os.path.isfile(path):
                raise DataError(f"data.source.root: {path} is not a file; move it away")
            if not hidden and wanted(path):
                names.append(name)
            else:
                left_out[kind_of(name)] += 1
    return names


def kind_of(name: str) -> str:
    """Returns a file's suffix in small letters, or ``hidden``: the reason why it is left out."""
    return "hidden" if name.startswith(".") else os.path.splitext(name)[1].lower() or "without a suffix"


def cached(
    root: Path,
    stem: str,
    content: str,
    shape: tuple[int, ...],
    compute: Callable[[], np.ndarray],
    dtype: type[np.generic] = np.uint8,
) -> np.ndarray:
    """Returns what is computed from many files below ``root``, from an ``.npz`` file, or computes and keeps it."""
    name = f"{stem}-{_digest(content)[:32]}.npz"  # uncompressed, with a checksum
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lit_fednas"
    folders = [root / CACHE, user / _digest(str(root.resolve()))[:16]]
    # others may have planted a link, with what it leads to
    folders = [folder for folder in folders if not folder.is_symlink() and not (folder / name).is_symlink()]
    for folder in folders:
        with suppress(Exception):  # missing or damaged
            array: np.ndarray = np.load(folder / name, allow_pickle=False)["array"]
            if array.shape == shape and array.dtype == dtype:
                return array
    array = compute()
    for folder in folders:
        with suppress(OSError):  # of a folder that cannot be written to
            with replacing(folder / name) as file:
                np.savez(file, array=array)
            for old in folder.glob(f"{stem}-*.np[yz]"):  # of earlier states of the files
                if old.name != name:
                    old.unlink(missing_ok=True)
            break
    return array


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
