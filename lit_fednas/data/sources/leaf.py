"""Data sets in the JSON format of LEAF (Caldas et al., 2018), with users as clients.

``root`` holds the folders ``train`` and ``test``, each with one or several files
``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, as LEAF's
``preprocess.sh`` leaves them in ``data/<name>/data``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split, files_in, kind_of, of_large_clients, reading
from lit_fednas.data.transforms import Augmentation
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.records.files import parse_json
from lit_fednas.records.forms import check_form

#: The form of a file.
_FORM = {"users": [str], "user_data": {"*": {"x": list, "y": list}}}


@checked("data.source")
class Leaf(DataSource):
    """LEAF data with flat lists of numbers as ``x``, such as FEMNIST's 784 grey values from 0 to 1.

    The examples have a column ``client``, the user, for the partition ``ByColumn("client")``. All inputs are kept in
    memory, as float32.

    Args:
        root: The folder that holds ``train`` and ``test``.
        input_shape: The shape of an input, from each flat list; (1, 28, 28) for FEMNIST.
        num_classes: The number of classes; 62 for FEMNIST.
        deal: ``train`` deals the examples of ``train`` to the clients and leaves ``test`` to the server;
            ``all`` deals both to the clients, to be split there (client_val, client_test).
        least: Minimum number of examples of a user that are dealt to clients; smaller users are left out.
        augmentation: Applied to training batches, in this order.
    """

    def __init__(
        self,
        root: str | Path,
        input_shape: Sequence[PositiveInt] = (1, 28, 28),
        num_classes: PositiveInt = 62,
        deal: Literal["train", "all"] = "train",
        least: PositiveInt = 1,
        augmentation: Sequence[Augmentation] = (),
    ) -> None:
        self.root = Path(root).expanduser()
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes
        self.deal = deal
        self.least = least
        self.augmentation = tuple(augmentation)

    @override
    def load(self, split: Split) -> Examples | None:
        folders = [folder for folder in ("train", "test") if split == ("train" if self.deal == "all" else folder)]
        if not folders:
            return None
        omissions = self.left_out[split] = Counter()
        parts = [self._read(self.root / folder, omissions) for folder in folders]
        inputs, labels, users = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if split == "train" and not (is_large := of_large_clients(users, self.least)).all():
            if not is_large.any():
                raise DataError(f"data.source.least: {self.least} leaves no user of {self.root}; give a smaller number")
            omissions[f"of users with fewer than {self.least}"] = int((~is_large).sum())
            inputs, labels, users = inputs[is_large], labels[is_large], users[is_large]
        return Examples(torch.from_numpy(inputs), torch.from_numpy(labels), {"client": users})

    def _read(self, folder: Path, omissions: Counter[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns inputs, classes and users of a folder's JSON files, in the order of the files' names."""
        paths = [folder / name for name in files_in(folder, lambda path: kind_of(path) == ".json", omissions)]
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
                        inputs.extend([self._inputs(x)] if x else [])
                        labels.extend(map(_whole_number, y))
                    except ValueError as error:
                        raise ValueError(f"it has for user {repr(user)} {error}") from error
                    users.extend([user] * len(y))
                    omissions.update([] if x else ["users without examples"])
        if not inputs:
            raise DataError(f"data.source.root: {folder} has no examples in its JSON files; give some")
        return np.concatenate(inputs), np.array(labels, dtype=np.int64), np.array(users)

    def _inputs(self, x: list[Any]) -> np.ndarray:
        array = np.asarray(x)  # raises ValueError for lists of different lengths
        if array.dtype.kind not in "iuf":
            raise ValueError("an x that is not a list of numbers; use ShakespeareRoles for text, ImageTable for files")
        x_shape, shape = ([size for size in sizes if size != 1] for sizes in (array.shape[1:], self.input_shape))
        if x_shape not in (shape, [math.prod(shape)]):
            text = "x".join(map(str, x_shape or [1]))
            raise ValueError(f"an x of {text} numbers; give an input_shape that fits, not {list(self.input_shape)}")
        with np.errstate(over="ignore"):  # infinity is refused later
            return array.astype(np.float32).reshape(len(x), *self.input_shape)


def _whole_number(value: Any) -> int:
    if type(value) in (int, float) and 0 <= value < 2**31 and value == int(value):
        return int(value)
    raise ValueError(f"the class {repr(value)}; give whole numbers from 0")


def _users(path: Path) -> list[tuple[str, list[Any], list[Any]]]:
    """Returns the name, x and y of each user of a file, in the order of ``users``."""
    check_form(content := parse_json(path.read_text(encoding="utf-8-sig")), _FORM)
    listed, data = Counter(content["users"]), content["user_data"]
    if mismatches := (listed - Counter([*data])) | (Counter([*data]) - listed):
        raise ValueError(f"the user {repr(min(mismatches))} is not once in 'users' and once in 'user_data'")
    parts = [(user, data[user]["x"], data[user]["y"]) for user in listed]
    for user, x, y in parts:
        if len(x) != len(y) or not (user.strip() and user.isprintable()):
            raise ValueError(f"it lacks a name, or lists x and y of one length, for user {repr(user)}")
    if content.get("num_samples", counts := [len(y) for _, _, y in parts]) != counts:
        raise ValueError("its num_samples are not the lengths of the users' lists")
    return parts
