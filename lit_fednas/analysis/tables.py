"""The one kind of table: rows as they are shown, as text, Markdown or HTML, and the values behind them as CSV."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lit_fednas.formatting import cell_text, cost_text, heading, text_table
from lit_fednas.records import COST_NAMES
from lit_fednas.records.files import as_cell

_FILES = FileSystemLoader(Path(__file__).with_name("report") / "templates")
_TEMPLATES = Environment(loader=_FILES, autoescape=True, undefined=StrictUndefined)
DASH = "–"
#: Costs of a network that tables show.
COSTS = COST_NAMES[:3]


@dataclass(frozen=True)
class Code:
    """A cell with an architecture, which may break after its commas."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __html__(self) -> Markup:
        return Markup("<code>{}</code>").format(Markup(",<wbr>").join(self.text.split(",")))


@dataclass(frozen=True)
class Bar:
    """A cell with a bar: a share of its width, the text on it, and what it says on hovering; dashed without text."""

    share: float
    text: str
    tip: str = ""

    def __str__(self) -> str:
        return self.text

    def __html__(self) -> Markup:
        if not self.text:
            return Markup('<div class="block absent"></div>')
        bar = '<div class="block" title="{}"><i style="width:{:.4g}%"></i><b>{}</b></div>'
        return Markup(bar).format(self.tip, 100 * self.share, self.text)


Cell: TypeAlias = str | Code | Bar
_CODE = {"arch", "cells"}  # columns of architectures


@dataclass(frozen=True)
class Table:
    """A table as it is shown, and the values that it shows."""

    head: Sequence[str]  # the columns' names
    body: Sequence[Sequence[Cell]]  # rows of as many cells
    left: int = 1  # how many columns are words; of the others, those without any word or architecture are numbers
    title: str = ""  # above the table
    notes: Sequence[Cell] = ()  # sentences below it
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)  # the values behind it, which may be more, for CSV
    marked: Collection[int] = ()  # rows that have a star behind their words,
    mark: str = ""  # and what it means

    @classmethod
    def of(cls, frame: pd.DataFrame, names: Iterable[str], **settings: Any) -> Table:
        """Returns the table that shows columns of a frame, if it has them; ``settings`` are its other attributes.

        Example:
            >>> frame = pd.DataFrame({"method": ["a", "b"], "macs": [24_123, None]})
            >>> print(Table.of(frame, ["method", "macs", "loss"]).text())
            method    MACs
            a       24.1 k
            b            –
        """
        columns = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in names if name in frame}
        cells = [[_cell(name, value) for value in column] for name, column in columns.items()]
        return cls(list(map(heading, columns)), list(zip(*cells, strict=True)), frame=frame, **settings)

    def text(self, markdown: bool = False) -> str:
        """Returns it as text, or as a table of Markdown, without the title."""
        body = [[str(cell) for cell in row] for row in self._starred()]
        return "\n\n".join([text_table(self.head, body, self.left, markdown), *map(str, self._notes())])

    def _starred(self) -> list[list[Cell]]:
        rows = [list(row) for row in self.body]
        for place in self.marked:
            rows[place][self.left - 1] = f"{rows[place][self.left - 1]} *"
        return rows

    def _notes(self) -> list[Cell]:
        return [*([f"* {self.mark}."] if self.marked else []), *self.notes]

    def csv(self) -> str:
        """Returns the values as a CSV file has them."""
        return csv_text(self.frame)

    def __html__(self) -> Markup:
        """Returns it as HTML that scrolls in its own box."""
        numbers = [self._is_number(place) for place in range(len(self.head))]
        return html("table.html.j2", table=self, rows=self._starred(), notes=self._notes(), numbers=numbers)

    def _is_number(self, column: int) -> bool:
        cells = [row[column] for row in self.body]
        words = (isinstance(cell, Code) or (isinstance(cell, str) and cell[:1].isalpha()) for cell in cells)
        return column >= self.left and not any(words)


@dataclass(frozen=True)
class Fold:
    """Tables of a page that are hidden until their summary is clicked."""

    summary: str
    tables: Sequence[Table]

    def __html__(self) -> Markup:
        inner = Markup("\n").join(self.tables)
        return Markup("<details><summary>{}</summary>\n{}\n</details>").format(self.summary, inner)


def html(template: str, **content: Any) -> Markup:
    """Returns a template of the report, filled in: texts are escaped, and what writes itself as HTML is not."""
    return Markup(_TEMPLATES.get_template(template).render(content))


def csv_text(frame: pd.DataFrame, **settings: Any) -> str:
    """Returns a frame as a CSV file has it, in which no spreadsheet takes a text for a formula."""
    return str(frame.map(as_cell).rename(columns=as_cell).to_csv(index=False, **settings))


def _cell(name: str, value: Any) -> Cell:
    return Code(value) if name in _CODE else cell_text(name, value)


def cost_words(name: str, number: float) -> str:
    """Writes a cost with its unit and its name."""
    return f"{cost_text(name, number)} {heading(name)}"


def range_text(name: str, values: pd.Series) -> str:
    """Returns the mean of a column, and the least and greatest where they differ; a dash unless all rows have one."""
    if values.empty or values.isna().any():
        return DASH
    mean, least, most = (cell_text(name, value) for value in (values.mean(), values.min(), values.max()))
    return mean if values.nunique() == 1 else f"{mean} ({least} to {most})"


def repeats(keys: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Returns ``as in NAME`` for each key that an earlier name had, and else nothing."""
    first: dict[Any, str] = {}
    return [
        "" if first.setdefault(key, name) == name else f"as in {first[key]}"
        for key, name in zip(keys, names, strict=True)
    ]
