"""Data sets in the JSON format of LEAF (Caldas et al., 2018), whose users become clients.

``root`` holds the folders ``train`` and ``test``, each with one or several files
``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, as LEAF's
``preprocess.sh`` leaves them in ``data/<name>/data``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from reprlib import repr
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import (
    DataSource,
    Deal,
    Split,
    files_in,
    given_normalization,
    kind_of,
    of_large_clients,
    reading,
)
from lit_fednas.data.sources.text import SHAKESPEARE, TextSource
from lit_fednas.data.tasks import require_few
from lit_fednas.data.transforms import Augmentation
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.records.files import parse_json

#: What ``x`` became, [N, ...]; classes, int64 [N]; users' names, [N].
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


@checked("data.source")
class Leaf(DataSource):
    """LEAF data whose ``x`` is a flat list of numbers, such as FEMNIST's 784 grey values from 0 to 1.

    The examples have a column ``client``, the user, so that ``ByColumn("client")`` makes one client of each.
    The whole is kept in memory, as float32.

    Args:
        root: The folder that holds ``train`` and ``test``.
        input_shape: What each list is reshaped to; (1, 28, 28) for FEMNIST.
        num_classes: 62 for FEMNIST; None counts from all labels, for which every process reads all files.
        deal: ``train`` deals the examples of ``train`` to the clients and leaves ``test`` to the server;
            ``all`` deals both to the clients, to be split there (client_val, client_test).
        least: Users with fewer examples to be dealt are left out.
        augmentation: Applied to training batches, in this order.
        mean: Per channel, on the data's own scale; None leaves the numbers as they are.
        std: Given together with ``mean``.
    """

    def __init__(
        self,
        root: str | Path,
        input_shape: Sequence[PositiveInt] = (1, 28, 28),
        num_classes: PositiveInt | None = None,
        deal: Deal = "train",
        least: PositiveInt = 1,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if not input_shape:
            raise ConfigError("data.source.input_shape: [] is not a shape; give sizes such as [1, 28, 28]")
        self.input_shape = tuple(input_shape)
        self.normalization = given_normalization(mean, std, self.input_shape[0])
        self.augmentation = tuple(augmentation)
        self._files = LeafFiles(Path(root).expanduser(), deal, least, num_classes, self.left_out, self._inputs)

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """As given, or counted."""
        return self._files.classes

    @override
    def load(self, split: Split) -> Examples | None:
        part = self._files.split(split)
        if part is None:
            return None
        inputs, labels, users = part
        return Examples(torch.from_numpy(inputs), torch.from_numpy(labels), {"client": users})

    def _inputs(self, x: list[Any]) -> np.ndarray:
        try:
            array = np.asarray(x)
        except ValueError:  # lists of different lengths
            array = np.array([None])
        if array.dtype.kind not in "iuf":
            raise ValueError("an x that is not a list of numbers; use LeafText for text, ImageTable for names of files")
        held, shape = ([size for size in sizes if size != 1] for sizes in (array.shape[1:], self.input_shape))
        if held not in (shape, [math.prod(shape)]):
            text = "x".join(map(str, held or [1]))
            raise ValueError(f"an x of {text} numbers; give an input_shape that fits, not {list(self.input_shape)}")
        with np.errstate(over="ignore"):
            array = array.astype(np.float32).reshape(len(x), *self.input_shape)
        if not np.isfinite(array).all():
            raise ValueError("an x with NaN or infinity")
        return array


@checked("data.source")
class LeafText(TextSource):
    """LEAF's Shakespeare, whose ``x`` are strings of 80 characters and whose ``y`` are the characters after them.

    Inputs are the characters of ``x``, in the 90 tokens of :class:`ShakespeareRoles`. Targets are the next
    character at every position: ``x`` without its first character, and ``y``. (LEAF itself predicts ``y`` alone; its
    examples of a user begin one character after the other, so that most characters are targets of 80 examples.)
    The examples have a column ``client``, the user.

    Args:
        root: The folder that holds ``train`` and ``test``.
        length: Characters per ``x``.
        deal: As for :class:`Leaf`.
        least: As for :class:`Leaf`.
    """

    class_names = SHAKESPEARE.names

    def __init__(
        self, root: str | Path, length: PositiveInt = 80, deal: Deal = "train", least: PositiveInt = 1
    ) -> None:
        self.input_shape = (length,)
        root = Path(root).expanduser()
        self._files = LeafFiles(root, deal, least, self.num_classes, self.left_out, self._characters, _next_character)

    @override
    def load(self, split: Split) -> Examples | None:
        part = self._files.split(split)
        if part is None:
            return None
        inputs, following, users = part
        targets = np.concatenate([inputs[:, 1:], following[:, None]], axis=1)
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {"client": users})

    def _characters(self, x: list[Any]) -> np.ndarray:
        length = self.input_shape[0]
        for text in x:
            if not isinstance(text, str):
                raise ValueError("an x that is not a string; use Leaf for lists of numbers")
            if len(text) != length:
                raise ValueError(f"an x of {len(text)} characters; give a length that fits, not {length}")
        return SHAKESPEARE.encoded("".join(x)).reshape(len(x), length)


def _next_character(value: Any) -> int:
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError(f"the y {repr(value)}; give one character")
    return int(SHAKESPEARE.encoded(value)[0])


def _whole_number(value: Any) -> int:
    if type(value) in (int, float) and 0 <= value < 2**31 and value == int(value):
        return int(value)
    raise ValueError(f"the class {repr(value)}; give whole numbers from 0")


@dataclass
class LeafFiles:
    """The JSON files below a folder, which are read whenever a split is loaded, and not kept."""

    root: Path
    deal: Deal
    least: int
    num_classes: int | None
    left_out: dict[Split, Counter[str]]
    # an array [N, ...] of a user's list x, and a class of an element of y; both raise ValueError where they cannot
    convert: Callable[[list[Any]], np.ndarray]
    label: Callable[[Any], int] = _whole_number

    @cached_property
    def classes(self) -> int:
        """The number of classes, as given or counted."""
        if self.num_classes:
            return self.num_classes
        parts = [self._read(part, lambda x: np.empty((len(x), 0)), Counter()) for part in ("train", "test")]
        labels = np.concatenate([labels for _, labels, _ in parts])
        require_few(count := 1 + int(labels.max()), len(labels), f"data.source.num_classes: the labels of {self.root}")
        return count

    def split(self, split: Split) -> Part | None:
        """Returns the examples of ``train``, or of ``test`` where it is not dealt; None for other splits."""
        names = [part for part in ("train", "test") if split == ("train" if self.deal == "all" else part)]
        if not names:
            return None
        classes = self.classes
        left_out = self.left_out[split] = Counter()
        parts = [self._read(name, self.convert, left_out) for name in names]
        inputs, labels, users = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        if labels.max() >= classes:
            most = labels.max()
            raise DataError(f"data.source.num_classes: {classes} for the label {most} in {self.root}; give {most + 1}")
        dealt = of_large_clients(users, self.least if split == "train" else 1)
        if dealt.all():
            return inputs, labels, users
        if not dealt.any():
            raise DataError(f"data.source.least: {self.least} leaves no user of {self.root}; give a smaller number")
        left_out[f"of users with fewer than {self.least}"] = int((~dealt).sum())
        return inputs[dealt], labels[dealt], users[dealt]

    def _read(self, part: str, convert: Callable[[list[Any]], np.ndarray], left_out: Counter[str]) -> Part:
        """Reads all JSON files of a folder, in the order of their names."""
        folder = self.root / part
        paths = [folder / name for name in files_in(folder, lambda path: kind_of(path) == ".json", left_out)]
        if not paths:
            raise DataError(f"data.source.root: {folder} has no JSON files; put LEAF's files of '{folder.name}' there")
        inputs: list[np.ndarray] = []
        labels: list[int] = []
        users: list[str] = []
        files: dict[str, Path] = {}
        for path in paths:
            with reading(path, "data.source.root", "correct or replace it"):
                for user, x, y in _users(path):
                    if files.setdefault(user, path) is not path:
                        raise ValueError(f"the user {repr(user)} is in {files[user].name}, too")
                    try:
                        inputs.extend([convert(x)] if x else [])
                        labels.extend(map(self.label, y))
                    except ValueError as error:
                        raise ValueError(f"it has for user {repr(user)} {error}") from error
                    users.extend([user] * len(y))
                    left_out.update([] if x else ["users without examples"])
        if not inputs:
            raise DataError(f"data.source.root: {folder} has no examples in its JSON files; give some")
        return np.concatenate(inputs), np.array(labels, dtype=np.int64), np.array(users)


def _users(path: Path) -> list[tuple[str, list[Any], list[Any]]]:
    """Returns the name, x and y of each user of a file, in the order of its list of users."""
    match content := parse_json(path.read_text(encoding="utf-8-sig")):
        case {"users": list(users), "user_data": dict(data)}:
            listed, held = Counter(map(str, users)), Counter([*data])
        case _:
            raise ValueError("it lacks a list 'users', or an object 'user_data'")
    if odd := (listed - held) | (held - listed):
        raise ValueError(f"the user {repr(min(odd))} is not once in 'users' and once in 'user_data'")
    parts = []
    for user in listed:
        match data[user]:
            case {"x": list(x), "y": list(y)} if len(x) == len(y) and user.strip() and user.isprintable():
                parts.append((user, x, y))
            case _:
                raise ValueError(f"it lacks a name, or lists x and y of one length, for user {repr(user)}")
    counts = [len(y) for _, _, y in parts]
    if content.get("num_samples", counts) != counts:
        raise ValueError("its num_samples are not the lengths of the users' lists")
    return parts
