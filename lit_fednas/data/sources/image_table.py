"""Image files that a table lists: a class and a client for each."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import numpy as np

from lit_fednas.data.sources.base import Split
from lit_fednas.data.sources.image_files import ImageFiles, file_stamps
from lit_fednas.data.sources.image_source import ImageSource
from lit_fednas.data.transforms import Augmentation
from lit_fednas.errors import DataError

SPLITS = ("train", "val", "test")


class ImageTable(ImageSource):
    """Images listed in a CSV file, one row each: its file, its class and the client it belongs to.

    The examples have a column ``client``, so that ``ByColumn("client")`` makes one client of each. Where the
    table has a column ``split``, its rows of ``val`` and ``test`` go to the server; without one, all rows go to
    the clients. Labels that are all whole numbers are the numbers of the classes, counted from 0; else they
    are names, in alphabetical order.

    With the data module's ``in_memory`` the images are decoded once, and kept on disk with ``cache``; without,
    they are decoded whenever they are read. Mean and std, where not given, come from 1024 training images.

    Args:
        table: the CSV file, with a header.
        root: the folder that the names of files start from; None is the table's own.
        file: the name of the column with the files' names.
        label: the name of the column with the classes.
        client: the name of the column that becomes ``client``.
        split: the name of the column with ``train``, ``val`` or ``test``; None is ``split``, if there is one.
        image_size: the shorter side is scaled to this and the centre square cut out; None takes the images as
            they are, which must then all be of one size.
        channels: 3 for colour, 1 for grey.
        cache: keep the decoded images on disk, next to the files or in the user's cache folder.
        augmentation: applied to training batches, in this order.
        mean: per channel on the scale [0, 1].
        std: given together with ``mean``.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        table: str | Path,
        root: str | Path | None = None,
        file: str = "file",
        label: str = "label",
        client: str = "client",
        split: str | None = None,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.table = Path(table).expanduser()
        self.file = file
        self.label = label
        self.client = client
        self.split = split
        folder = self.table.parent if root is None else root
        super().__init__(folder, image_size, channels, cache, augmentation, mean, std)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels of all splits in alphabetical order, or the numbers from 0 to the greatest."""
        labels = {row.label for row in self._rows}
        if self._numeric:
            return tuple(map(str, range(max(map(int, labels)) + 1)))
        return tuple(sorted(labels))

    def files(self, split: Split) -> ImageFiles | None:
        """Returns the files of a split in the table's order; None where no row is of the split.

        Raises:
            DataError: the table is not as described above, or a file is missing.
        """
        rows = [row for row in self._rows if row.split == split]
        if not rows:
            return None
        numbers = {name: number for number, name in enumerate(self.class_names)}
        targets = [int(row.label) if self._numeric else numbers[row.label] for row in rows]
        names = tuple(row.file for row in rows)
        return ImageFiles(
            self.root,
            names,
            np.array(targets, dtype=np.int64),
            file_stamps(self.root, names),
            {"client": np.array([row.client for row in rows])},
            f"{self.table.stem}-{split}",
        )

    @cached_property
    def _numeric(self) -> bool:
        return all(row.label.isdecimal() for row in self._rows)

    @cached_property
    def _rows(self) -> tuple[_Row, ...]:
        """Reads and checks the table."""
        if not self.table.is_file():
            raise DataError(f"table: {self.table} is no file; give a CSV file with a row for each image")
        with self.table.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            fields = list(reader.fieldnames or [])
            for setting, column in (("file", self.file), ("label", self.label), ("client", self.client)):
                self._check(setting, column, fields)
            if self.split is not None:
                self._check("split", self.split, fields)
            split = self.split or "split"
            rows = tuple(
                _Row(
                    self._cell(line, reader.line_num, self.file),
                    self._cell(line, reader.line_num, self.label),
                    self._cell(line, reader.line_num, self.client),
                    self._split(line[split], reader.line_num) if split in fields else "train",
                )
                for line in reader
            )
        if not rows:
            raise DataError(f"table: {self.table} has no rows; give one for each image")
        seen: set[str] = set()
        for row in rows:
            if row.file in seen:
                raise DataError(f"table: {self.table} lists {row.file} twice; give each image one row")
            seen.add(row.file)
        return rows

    def _check(self, setting: str, column: str, fields: Sequence[str]) -> None:
        if column not in fields:
            raise DataError(f"{setting}: {self.table} has no column {column!r}; name one of: {', '.join(fields)}")

    def _cell(self, line: dict[str, str | None], number: int, column: str) -> str:
        value = (line[column] or "").strip()
        if not value:
            raise DataError(f"table: {self.table}, line {number}, has no {column!r}; fill it in")
        return value

    def _split(self, value: str | None, number: int) -> Split:
        if value not in SPLITS:
            raise DataError(f"table: {self.table}, line {number}, has split {value!r}; give train, val or test")
        return cast(Split, value)


@dataclass(frozen=True)
class _Row:
    """One image."""

    file: str
    label: str
    client: str
    split: Split
