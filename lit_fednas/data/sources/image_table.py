"""Image files that a table lists: a class and a client for each."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.data.sources.base import SPLITS, Split
from lit_fednas.data.sources.image_files import ImageFiles, read_rows
from lit_fednas.data.sources.image_source import ImageSource
from lit_fednas.errors import DataError


class ImageTable(ImageSource):
    """Images listed in a CSV file, one row each: its file, its class and the client it belongs to.

    The examples have a column ``client``, so that ``ByColumn("client")`` makes one client of each. Where the table
    has a column ``split``, its rows of ``val`` and ``test`` go to the server; without one, all rows go to the
    clients. Labels that are all whole numbers are classes from 0; others are names, in alphabetical order.

    Args:
        table: The CSV file, with a header.
        root: The folder that the names of files start from; None is the table's own.
        file: The name of the column with the files' names.
        label: The name of the column with the classes.
        client: The name of the column that becomes ``client``.
        split: The name of the column with ``train``, ``val`` or ``test``; None is ``split``, if the table has it.
        images: Settings of :class:`ImageSource`.
    """

    def __init__(
        self,
        table: str | Path,
        root: str | Path | None = None,
        file: str = "file",
        label: str = "label",
        client: str = "client",
        split: str | None = None,
        **images: Any,
    ) -> None:
        self.table = Path(table).expanduser()
        self.file = file
        self.label = label
        self.client = client
        self.split = split
        super().__init__(self.table.parent if root is None else root, **images)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels of all splits in alphabetical order, or the numbers from 0 to the greatest."""
        labels = {row["label"] for row in self._rows}
        if self._numeric:
            if (greatest := max(map(int, labels))) >= len(self._rows) + 10_000:  # an id, of which no list is made
                raise DataError(
                    f"data.source.label: {self.table} has class {greatest} and {len(self._rows)} images; "
                    f"number the classes from 0"
                )
            return tuple(map(str, range(greatest + 1)))
        return tuple(sorted(labels))

    @override
    def files(self, split: Split) -> ImageFiles | None:
        rows = [row for row in self._rows if row["split"] == split]
        if not rows:
            return None
        numbers = {name: number for number, name in enumerate(self.class_names)}
        targets = [int(row["label"]) if self._numeric else numbers[row["label"]] for row in rows]
        return ImageFiles(
            self.root,
            tuple(row["file"] for row in rows),
            np.array(targets, dtype=np.int64),
            {"client": np.array([row["client"] for row in rows])},
            f"{self.table.stem}-{split}",
        )

    @cached_property
    def _numeric(self) -> bool:
        return all(row["label"].isdecimal() for row in self._rows)

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        """Reads and validates the table; each row has ``file``, ``label``, ``client`` and ``split``."""
        if not self.table.is_file():
            raise DataError(f"data.source.table: {self.table} is not a file; give a CSV file with a row for each image")
        columns = {"file": self.file, "label": self.label, "client": self.client}
        if self.split is not None:
            columns["split"] = self.split
        rows = []
        for line in read_rows(self.table, columns, "table")[1]:
            row = {setting: line[column] for setting, column in columns.items()}
            row.setdefault("split", line.get("split", "train"))
            if row["split"] not in SPLITS:
                where = f"data.source.table: {self.table}: {row['file']}"
                raise DataError(f"{where} has split {row['split']!r}; give train, val or test")
            rows.append(row)
        if not rows:
            raise DataError(f"data.source.table: {self.table} has no rows; give one for each image")
        return rows
