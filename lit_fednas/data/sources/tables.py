"""Tables with a row per example: columns of numbers, categories, targets and clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.errors import ConfigError, DataError, require_different

#: Cells of a .csv that hold no number.
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None")
_BOOLEANS = {"true": True, "false": False}
_WHOLE = r"0|-?[1-9][0-9]{0,17}"


def is_table(path: Path) -> bool:
    """Whether a file is a table, by the end of its name."""
    return path.suffix in (".csv", ".parquet")


def read_table(path: Path, texts: Sequence[str | None]) -> Any:
    """Returns a file's ``pandas.DataFrame``."""
    import pandas as pd  # takes a while to import

    try:
        if path.suffix == ".csv":
            names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
            require_different(names, "data.source.files", path)
            frame = _read_csv(path, [name for name in names if name in texts], names)
        else:
            from pyarrow.parquet import read_schema

            if path.is_file():
                require_different(read_schema(path).names, "data.source.files", path)
            frame = pd.read_parquet(path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"data.source.files: {path} is missing; correct the path") from None
    except ImportError as error:
        raise ConfigError(
            f"data.source.files: {path} needs pyarrow; pip install 'lit-fednas[tables]', or give a .csv"
        ) from error
    except pd.errors.ParserWarning:
        raise DataError(
            f"data.source.files: {path} has more cells in row 0 than columns ({', '.join(names)}); quote cells that "
            "hold a comma"
        ) from None
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise DataError(f"data.source.files: {path} cannot be read ({text}); replace it") from error
    if not len(frame):
        raise DataError(f"data.source.files: {path} has no rows; give one per example")
    return frame


def _read_csv(path: Path, texts: Sequence[str], names: Sequence[str]) -> Any:
    import pandas as pd

    missing = {name: [""] if name in texts else list(_MISSING) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # of cells that are left out
        frame = pd.read_csv(
            path,
            index_col=False,
            dtype=dict.fromkeys(texts, str),
            keep_default_na=False,
            na_values=missing,
            low_memory=False,  # else each chunk of rows would have types of its own
        )
    for name in texts:
        known = pd.to_numeric(frame[name], errors="coerce").notna()
        if known.any() and (known | frame[name].isin(_MISSING)).all():  # beside numbers, "NA" is no name
            frame[name] = frame[name].where(known)
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
        if text := [
            name
            for name in self.numeric
            if train[name].dtype.kind not in "biuf" and _numbers_of(train[name], self.path).isna().all()
        ]:
            raise DataError(
                f"data.source.inputs: {', '.join(text)} of {self.path} are not numbers; name them as categorical, or "
                "leave them out of inputs"
            )
        self.values = {
            name: [str(value) for value in sorted(self._named(train, name, self.path).unique())]
            for name in self.categorical
        }
        self.classes = self._classes(train) if len(self.target) == 1 else None

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
            column = self._named(frame, self.client, path).to_numpy()
            clients = {str(self.client): column.astype(str) if column.dtype.kind == "O" else column}
        if not columns:
            raise DataError(f"data.source.inputs: {path} has no column beside target and client; add some")
        return np.concatenate(columns, axis=1), targets, clients

    def _classes(self, train: Any) -> list[str] | None:
        """Returns the names of classes; None where the target is a number."""
        column = self._filled(train, self.target[0], self.path)
        numbers = _numbers_of(column, self.path)
        if numbers.notna().all():
            return None
        if (numbers % 1 > 0).any():
            self._numbers(train, self.target[0], self.path, "target")  # which names the row with the text
        return sorted(column.astype(str).unique())

    def _numbers(self, frame: Any, name: str, path: Path, setting: str) -> np.ndarray:
        column = self._filled(frame, name, path)
        numbers = _numbers_of(column, path)
        if (text := numbers.isna()).any():
            row = int(np.argmax(text))
            raise DataError(
                f"data.source.{setting}: {name!r} of {path} holds text in place of numbers, {str(column.iloc[row])!r} "
                f"in row {row}; correct it"
            )
        return np.asarray(numbers)

    def _codes(self, frame: Any, name: str, values: Sequence[str], path: Path) -> np.ndarray:
        numbers = {value: number for number, value in enumerate(values)}
        column = self._filled(frame, name, path).astype(str)
        if unknown := sorted(set(column.unique()) - set(values)):
            raise DataError(f"data.source.files: {path} has {name} {unknown[0]!r}, which train does not; correct it")
        return column.map(numbers).to_numpy().astype(np.int64)

    def _named(self, frame: Any, name: str | None, path: Path) -> Any:
        """Returns a column of names; of a ``.csv``, whole numbers in their order if no two can be the same number."""
        column = self._filled(frame, name, path)
        if path.suffix == ".csv" and column.str.fullmatch(_WHOLE).all():
            return column.astype(np.int64)
        return column

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


def _numbers_of(column: Any, path: Path) -> Any:
    """Returns a column as numbers, NaN where it has none; text is read in a ``.csv`` alone."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column
    if path.suffix != ".csv":
        return pd.Series(np.nan, column.index)
    truths = column.str.lower().map(_BOOLEANS)
    return truths.astype(bool) if truths.notna().all() else pd.to_numeric(column, errors="coerce")
