"""Tables with a row per example: columns of numbers, categories, targets and clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.errors import ConfigError, DataError


def is_table(path: Path) -> bool:
    """Whether a file is a table, by the end of its name."""
    return path.suffix in (".csv", ".parquet")


def read_table(path: Path) -> Any:
    """Returns a file's ``pandas.DataFrame``.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file is missing, damaged or empty.
    """
    import pandas as pd  # takes a while to import

    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"data.source.files: {path} is missing; correct the path") from None
    except ImportError as error:
        raise ConfigError(
            f"data.source.files: {path} needs pyarrow; pip install 'lit-fednas[tables]', or give a .csv"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"data.source.files: {path} cannot be read ({error}); replace it") from error
    if not len(frame):
        raise DataError(f"data.source.files: {path} has no rows; give one per example")
    return frame


@dataclass
class Table:
    """What the columns of a training table are, so that those of all splits become the same arrays.

    Args:
        train: The training table, a ``pandas.DataFrame``, which is not kept.

    Attributes:
        path: Where it is from.
        target: The target columns.
        client: The column of the clients, or None.
        inputs: The input columns; None is all others.
        categorical: The input columns that become a column of 0 and 1 per value.
        classes: What the target column holds, in alphabetical order; None where there are numbers or several columns.

    Raises:
        DataError: A column is missing, holds text and is not ``categorical``, or is both input and target.
    """

    train: InitVar[Any]
    path: Path
    target: Sequence[str]
    client: str | None
    inputs: Sequence[str] | None
    categorical: Sequence[str]

    def __post_init__(self, train: Any) -> None:
        others = {*self.target, self.client}
        listed = [name for name in train.columns if name not in others] if self.inputs is None else self.inputs
        self._require(train, self.path, "target", self.target)
        self._require(train, self.path, "client", [self.client] if self.client else [])
        self._require(train, self.path, "inputs", listed)
        if targets := [name for name in listed if name in self.target]:
            raise DataError(f"data.source.inputs: {targets[0]!r} of {self.path} is a target; leave it out")
        if unlisted := [name for name in self.categorical if name not in listed]:
            raise DataError(f"data.source.categorical: {unlisted[0]!r} is not an input of {self.path}; leave it out")
        self.numeric = [name for name in listed if name not in self.categorical]
        if text := [name for name in self.numeric if train[name].dtype.kind not in "biuf"]:
            raise DataError(
                f"data.source.inputs: {', '.join(text)} of {self.path} are not numbers; name them as categorical, or "
                "leave them out of inputs"
            )
        self.values = {name: sorted(self._filled(train, name, self.path).unique()) for name in self.categorical}
        self.classes: list[Any] | None = None
        if len(self.target) == 1 and train[self.target[0]].dtype.kind not in "biuf":
            self.classes = sorted(self._filled(train, self.target[0], self.path).unique(), key=str)

    @property
    def num_indicators(self) -> int:
        """The number of columns of 0 and 1, which are the last ones."""
        return sum(map(len, self.values.values()))

    def arrays(self, frame: Any, path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Returns the inputs, float32 ``[N, columns]``, the targets and the clients of a split.

        Args:
            frame: Its ``pandas.DataFrame``.
            path: Where it is from.

        Raises:
            DataError: A column is missing, or has an empty cell, text in place of numbers or a value that ``train``
                does not have.
        """
        self._require(frame, path, "inputs", [*self.numeric, *self.categorical])
        self._require(frame, path, "target", self.target)
        columns = [self._numbers(frame, name, path, "inputs")[:, None].astype(np.float32) for name in self.numeric]
        for name, values in self.values.items():
            codes = self._codes(frame, name, values, path)
            columns.append(np.eye(len(values), dtype=np.float32)[codes])
        if self.classes is not None:
            targets = self._codes(frame, self.target[0], self.classes, path)
        else:
            parts = [self._numbers(frame, name, path, "target") for name in self.target]
            targets = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        clients = {}
        if self.client in frame.columns:
            column = self._filled(frame, self.client, path).to_numpy()
            clients = {str(self.client): column.astype(str) if column.dtype.kind == "O" else column}
        if not columns:
            raise DataError(f"data.source.inputs: {path} has no column beside target and client; add some")
        return np.concatenate(columns, axis=1), targets, clients

    def _numbers(self, frame: Any, name: str, path: Path, setting: str) -> np.ndarray:
        column = self._filled(frame, name, path)
        if column.dtype.kind not in "biuf":
            raise DataError(f"data.source.{setting}: {name!r} of {path} holds text in place of numbers; correct it")
        return column.to_numpy()

    def _codes(self, frame: Any, name: str, values: Sequence[Any], path: Path) -> np.ndarray:
        numbers = {value: number for number, value in enumerate(values)}
        column = self._filled(frame, name, path)
        if unknown := sorted(set(column.unique()) - set(values), key=str):
            raise DataError(f"data.source.files: {path} has {name} {unknown[0]!r}, which train does not; correct it")
        return column.map(numbers).to_numpy().astype(np.int64)

    @staticmethod
    def _require(frame: Any, path: Path, setting: str, names: Sequence[str]) -> None:
        if missing := [name for name in names if name not in frame.columns]:
            known = ", ".join(map(str, frame.columns))
            raise DataError(f"data.source.{setting}: {path} has no column {missing[0]!r}; name one of: {known}")

    @staticmethod
    def _filled(frame: Any, name: str | None, path: Path) -> Any:
        """Returns a column, which must have no empty cell."""
        column = frame[name]
        if (empty := column.isna()).any():
            row = int(np.flatnonzero(empty)[0])
            raise DataError(f"data.source.files: {path} has no value of {name!r} in row {row}; fill it in or remove it")
        return column
