"""Reading the JSON files of LEAF (Caldas et al., 2018): users, and what each of them has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.data.sources.base import Split
from lit_fednas.data.sources.dealing import Deal, enough
from lit_fednas.errors import ConfigError, DataError

Convert = Callable[[list[Any]], np.ndarray]


@dataclass(frozen=True, eq=False)
class LeafPart:
    """Some examples: what ``x`` became, [N, ...]; classes, int64 [N]; users' names, [N]."""

    inputs: np.ndarray
    labels: np.ndarray
    clients: np.ndarray

    def of_large_clients(self, least: int) -> LeafPart:
        """Returns the examples of the users with ``least`` examples or more."""
        kept = enough(self.clients, least)
        return self if kept.all() else LeafPart(self.inputs[kept], self.labels[kept], self.clients[kept])

    def check_labels(self, num_classes: int, root: Path) -> None:
        """Raises DataError where a label is no class."""
        if self.labels.max(initial=0) >= num_classes:
            most = self.labels.max()
            raise DataError(
                f"num_classes: {num_classes} for the label {most} below {root}; give {most + 1} or more"
            )


def folders(split: Split, deal: Deal) -> tuple[str, ...]:
    """Returns the folders whose examples make up a split; none where there is no such split.

    Example:
        >>> folders("train", "all"), folders("test", "all"), folders("test", "train")
        (('train', 'test'), (), ('test',))
    """
    if deal == "all":
        return ("train", "test") if split == "train" else ()
    return () if split == "val" else (split,)


def read_leaf(root: Path, part: str, convert: Convert) -> LeafPart:
    """Reads all JSON files of the folder ``part`` below ``root``, in the order of their names.

    Args:
        root: the folder.
        part: ``train`` or ``test``.
        convert: makes an array [N, ...] of a user's list ``x``; ValueError where it cannot.

    Raises:
        DataError: a folder or file is missing, damaged or not as LEAF writes it.
    """
    inputs: list[np.ndarray] = []
    labels: list[int] = []
    users: list[str] = []
    for path in _json_files(root, part):
        for user, data in _users(path):
            x, y = data.get("x"), data.get("y")
            if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                raise DataError(
                    f"root: {path} has no lists x and y of one length for user {user!r}; mend the file"
                )
            if not x:
                continue
            try:
                inputs.append(convert(x))
            except ValueError as error:
                raise DataError(f"root: {path} has for user {user!r} {error}") from error
            labels.extend(_label(value, path, user) for value in y)
            users.extend([user] * len(y))
    if not inputs:
        raise DataError(f"root: {root / part} has no examples in its JSON files; give some")
    return LeafPart(np.concatenate(inputs), np.array(labels, dtype=np.int64), np.array(users))


def joined(parts: Sequence[LeafPart]) -> LeafPart:
    """Returns the examples of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.inputs, part.labels, part.clients) for part in parts), strict=True)
    return LeafPart(*(np.concatenate(arrays) for arrays in columns))


def check_num_classes(num_classes: int | None) -> None:
    """Raises ConfigError unless it is None or a number of classes."""
    if num_classes is not None and num_classes < 1:
        raise ConfigError(f"num_classes: {num_classes} is not enough; give 1 or more, or null to count")


def _json_files(root: Path, part: str) -> list[Path]:
    folder = root / part
    if not folder.is_dir():
        raise DataError(f"root: {folder} is no folder; put LEAF's JSON files of '{part}' there")
    found = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    if not found:
        raise DataError(f"root: {folder} has no JSON files; put LEAF's files of '{part}' there")
    return found


def _users(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each user of a file, in the order of its list of users."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"root: {path} cannot be read ({error}); replace the file") from error
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        raise DataError(f"root: {path} has no 'users' and 'user_data'; give files as LEAF writes them")
    for user in content["users"]:
        if not isinstance(content["user_data"].get(user), dict):
            raise DataError(f"root: {path} has no data of user {user!r}; mend the file")
        yield str(user), content["user_data"][user]


def _label(value: Any, path: Path, user: str) -> int:
    if isinstance(value, (int, float)) and float(value).is_integer() and value >= 0:
        return int(value)
    raise DataError(f"root: {path} has the class {value!r} for user {user!r}; give whole numbers from 0")
