"""Tables with a row per example: readers of ``.csv`` and ``.parquet``, and the conversion of columns to arrays."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.data.examples import missing
from lit_fednas.data.sources.base import named_classes, reading
from lit_fednas.errors import ConfigError, DataError, require_different

#: Maximum number of values of a categorical input, each of which becomes a column.
MOST_VALUES = 10_000
#: Cells of a .csv that stand for missing numbers.
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None")
_BOOLEANS = {"true": True, "false": False}
_WHOLE = r"0|-?[1-9][0-9]{0,17}"


def read_table(path: Path, field: str, texts: Collection[str | None] | None = None) -> Any:
    """Returns a file's ``pandas.DataFrame``, with stripped text; columns in ``texts`` (None is all) are text."""
    import pandas as pd  # takes a while to import

    with reading(path, field, "correct or replace it"):
        content = _parquet(path, field) if path.suffix.lower() == ".parquet" else path.read_bytes()
        names = _header(content, path, field)
        text_names = names if texts is None else [name for name in names if name in texts]
        frame = pd.read_csv(
            io.BytesIO(content),
            names=names,
            header=0,
            index_col=False,
            dtype=str if texts is None else dict.fromkeys(text_names, str),
            keep_default_na=False,
            na_values={name: [""] if name in text_names else list(_MISSING) for name in names},
            low_memory=False,  # otherwise each chunk of rows would infer its own types
        )
    for name, column in frame.items():
        if column.dtype.kind == "O":  # text, or booleans with missing cells
            frame[name] = column.map(lambda value: str(value).strip(), na_action="ignore")
    if not len(frame):
        raise DataError(f"{field}: {path} has no rows; give one per example")
    return frame


def _parquet(path: Path, field: str) -> bytes:
    """Returns the table and its named indexes as CSV; drops columns of lists, structures and bytes."""
    import pandas as pd

    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise ConfigError(f"{field}: {path} needs pyarrow; pip install 'lit-fednas[tables]', or give a .csv") from error
    schema = parquet.ParquetDataset(path).schema
    require_different(schema.names, field, path)
    names = [part.name for part in schema if not types.is_nested(part.type) and "binary" not in str(part.type)]
    frame = pd.read_parquet(path, columns=names, page_checksum_verification=True)
    return frame.reset_index([name for name in frame.index.names if name is not None]).to_csv(index=False).encode()


def _header(content: bytes, path: Path, field: str) -> list[str]:
    """Returns the names of a CSV file's columns; validates that each row has one cell per column."""
    if b"\0" in content:
        raise ValueError("it has zero bytes, so that it is not UTF-8 text")
    has_quotes = b'"' in content
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="" if has_quotes else None)
    quoted = csv.reader(lines, strict=True)  # takes three times as long as pandas
    rows = quoted if has_quotes else (line.rstrip("\n").split(",") for line in lines)
    rows = (row for row in rows if len(row) > 1 or "".join(row).strip())  # pandas skips blank lines
    try:
        names = [name.strip() or f"Unnamed: {number}" for number, name in enumerate(next(rows, []))]
        if not names:
            raise DataError(f"{field}: {path} has no rows; give a header and one per example")
        require_different(names, field, path)
        if len(names) == 1 and (other := re.search("[;\t|]", names[0])):
            raise DataError(f"{field}: {path} has one column, {names[0]!r}; separate cells by commas, not {other[0]!r}")
        for number, row in enumerate(rows):
            if len(row) != len(names):
                raise ValueError(f"{len(row)} cells in row {number}, but {len(names)} columns; is a quote missing?")
            for column, (name, cell) in enumerate(zip(names, row if has_quotes else (), strict=False)):
                commas = [len(re.findall(r",(?!\s)", line)) for line in cell.split("\n")]  # cells of text may hold ", "
                if len(commas) > 1 and (commas[0], commas[-1]) == (len(names) - 1 - column, column):
                    fault = f"{path} has a line break in {name!r}, row {number}, and would lose a row"
                    raise DataError(f"{field}: {fault}; remove the line break, or close a quote")
    except csv.Error as error:
        raise ValueError(f"line {quoted.line_num}: {error}; is a quote missing?") from None
    return names


def require_columns(frame: Any, path: Path, field: str, names: Sequence[str]) -> None:
    """Validates that a table has the named columns."""
    if absent := [name for name in names if name not in frame.columns]:
        columns = ", ".join(map(str, frame.columns))
        raise DataError(f"{field}: {path} has no column {absent[0]!r}; name one of: {columns}")


def filled(column: Any, path: Path, field: str = "data.source.files") -> Any:
    """Returns a column; raises DataError for empty cells, and for line breaks in text."""
    if (empty := missing(column.to_numpy())).any():
        row = int(empty.argmax())
        raise DataError(f"{field}: {path} has no value of {column.name!r} in row {row}; fill it in or remove it")
    if column.dtype.kind in "biuf":
        return column
    if (broken := column.str.contains("[\r\n]").to_numpy(bool)).any():
        row = int(broken.argmax())
        raise DataError(f"{field}: {path} has a line break in {column.name!r}, row {row}; remove it, or close a quote")
    return column


def numbers(column: Any, path: Path, field: str) -> np.ndarray:
    """Returns a column as numbers; raises DataError for missing and too large ones."""
    column = _without_missing(column, path, field)
    values = np.asarray(_as_numbers(column))
    if (is_text := np.isnan(values)).any():
        row = int(np.argmax(is_text))
        fault = f"holds text in place of numbers, {column.iloc[row]!r} in row {row}"
        raise DataError(f"{field}: {column.name!r} of {path} {fault}; correct it")
    limit = 2.0**53 if values.dtype.kind in "iu" else float(np.finfo(np.float32).max)
    if (is_large := np.abs(values.astype(float)) >= limit).any():
        row = int(np.argmax(is_large))
        fault = f"is {column.iloc[row]} in row {row}, too large for a number"
        raise DataError(f"{field}: {column.name!r} of {path} {fault}; correct it, or omit the column")
    return values


@dataclass
class Table:
    """The roles of a training table's columns, by which the tables of all splits become arrays.

    ``numeric`` names the inputs that are numbers, ``values`` holds the values of each categorical input, and
    ``classes`` the names in the target's column (None if it holds numbers, or if there are several targets).
    """

    train: InitVar[Any]
    path: Path
    target: Sequence[str]
    client: str | None
    inputs: Sequence[str] | None
    categorical: Sequence[str]
    configured_classes: Sequence[str] | None = None

    def __post_init__(self, train: Any) -> None:
        listed = self.inputs
        if listed is None:
            listed = [name for name in train.columns if name not in {*self.target, self.client}]
            if unnamed := [name for name in listed if str(name).startswith("Unnamed: ")]:  # pandas' name for it
                fault = f"{self.path} has a column without a name ({unnamed[0]!r}), such as to_csv's index"
                raise DataError(f"data.source.inputs: {fault}; write it with index=False, or list the inputs")
        for setting, names in (("target", self.target), ("inputs", listed), ("categorical", self.categorical)):
            if duplicates := [name for name, count in Counter(names).items() if count > 1]:
                raise ConfigError(f"data.source.{setting}: {duplicates[0]!r} is listed twice; list it once")
        require_columns(train, self.path, "data.source.target", self.target)
        require_columns(train, self.path, "data.source.client", [self.client] if self.client else [])
        require_columns(train, self.path, "data.source.inputs", listed)
        if targets := [name for name in listed if name in self.target]:
            raise DataError(f"data.source.inputs: {targets[0]!r} of {self.path} is a target; leave it out")
        if unlisted := [name for name in self.categorical if name not in listed]:
            raise DataError(f"data.source.categorical: {unlisted[0]!r} is not an input of {self.path}; leave it out")
        self.numeric = [name for name in listed if name not in self.categorical]
        if text := [name for name in self.numeric if _is_text(train[name], self.path)]:
            fault = f"{', '.join(text)} of {self.path} are not numbers"
            raise DataError(f"data.source.inputs: {fault}; name them as categorical, or leave them out of inputs")
        self.values = {
            name: [str(value) for value in sorted(_names(train[name], self.path).unique())] for name in self.categorical
        }
        for name, values in self.values.items():
            if (count := len(values)) > MOST_VALUES:
                raise DataError(f"data.source.categorical: {name!r} of {self.path} has {count:,} values; leave it out")
        self.classes = self._classes(train[self.target[0]]) if len(self.target) == 1 else None
        used = {*listed, *self.target, self.client}
        # the command partition shows how each column is read
        self.kinds = {
            "numbers": self.numeric,
            "categories": [f"{name} ({len(values):,} values)" for name, values in self.values.items()],
            "target": [f"{name} ({'numbers' if self.classes is None else 'names'})" for name in self.target],
            "client": [self.client] if self.client else [],
            "left out": [name for name in train.columns if name not in used],
        }

    @property
    def num_indicators(self) -> int:
        """The number of columns of 0 and 1, which come last."""
        return sum(map(len, self.values.values()))

    def arrays(self, frame: Any, path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Returns the inputs, float32 ``[N, columns]``, the targets and the clients of a split."""
        require_columns(frame, path, "data.source.inputs", [*self.numeric, *self.categorical])
        require_columns(frame, path, "data.source.target", self.target)
        columns = [
            numbers(frame[name], path, "data.source.inputs")[:, None].astype(np.float32) for name in self.numeric
        ]
        for name, values in self.values.items():
            columns.append((_codes(frame[name], values, path)[:, None] == np.arange(len(values))).astype(np.float32))
        if not columns:
            raise DataError(f"data.source.inputs: {path} has no column beside target and client; add some")
        if self.classes is not None:
            targets = _codes(frame[self.target[0]], self.classes, path)
        else:
            parts = [numbers(frame[name], path, "data.source.target") for name in self.target]
            targets = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        clients = {}
        if self.client in frame.columns:
            column = _names(frame[self.client], path).to_numpy()
            clients = {str(self.client): column.astype(str) if column.dtype.kind == "O" else column}
        return np.concatenate(columns, axis=1), targets, clients

    def _classes(self, target: Any) -> tuple[str, ...] | None:
        """Returns the names of classes; None if the target is a number."""
        column = _without_missing(target, self.path)
        values = _as_numbers(column)
        if self.configured_classes is None and values.notna().all():
            return None
        if (values % 1 > 0).any():
            numbers(target, self.path, "data.source.target")  # raises DataError with the row of the text
        return named_classes(self.configured_classes, column.astype(str).unique(), self.path)


def _without_missing(column: Any, path: Path, field: str = "data.source.files") -> Any:
    """Returns a column; raises DataError for empty cells, such as "NA" among numbers."""
    if column.dtype.kind not in "biuf":
        is_number = _to_numeric(column).notna()
        if is_number.any() and (is_number | column.isin(_MISSING)).all():
            column = column.where(is_number)
    return filled(column, path, field)


def _codes(column: Any, values: Sequence[str], path: Path) -> np.ndarray:
    codes = {value: code for code, value in enumerate(values)}
    column = _without_missing(column, path).astype(str)
    if unknown := sorted(set(column.unique()) - set(values)):
        raise DataError(f"data.source.files: {path} has {column.name} {unknown[0]!r}, which train lacks; correct it")
    return np.asarray(column.map(codes), dtype=np.int64)


def _names(column: Any, path: Path) -> Any:
    """Returns a column of names, as int64 if all are whole numbers in their usual form, to sort them by size."""
    column = _without_missing(column, path)
    if column.str.fullmatch(_WHOLE).all():
        return column.astype(np.int64)
    return column


def _is_text(column: Any, path: Path) -> bool:
    if column.dtype.kind in "biuf" or column.isna().all():
        return False
    return bool(_as_numbers(filled(column.dropna(), path)).isna().all())


def _as_numbers(column: Any) -> Any:
    """Returns a column as numbers, with NaN in place of text."""
    if column.dtype.kind in "biuf":
        return column
    truths = column.str.lower().map(_BOOLEANS)
    return truths.astype(bool) if truths.notna().all() else _to_numeric(column)


def _to_numeric(column: Any) -> Any:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")
