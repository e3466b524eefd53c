"""Tables for display: cells as text, Markdown or HTML, and the values behind them as CSV."""

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
    """A cell with an architecture; its line may break after commas."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __html__(self) -> Markup:
        return Markup("<code>{}</code>").format(Markup(",<wbr>").join(self.text.split(",")))


@dataclass(frozen=True)
class Bar:
    """A cell with a bar: its share of the width, its text, and a hovering text; without text, a dashed box."""

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
    """The cells of a table, and the values behind them."""

    head: Sequence[str]  # the names of the columns
    body: Sequence[Sequence[Cell]]  # rows with a cell per column
    num_texts: int = 1  # number of first columns with words; of the others, those of numbers alone align right
    title: str = ""  # the title above the table
    notes: Sequence[Cell] = ()  # sentences below the table
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)  # the values for CSV, possibly with more columns
    marked: Collection[int] = ()  # numbers of the rows with a star behind their words
    mark: str = ""  # the meaning of the star

    @classmethod
    def of(cls, frame: pd.DataFrame, names: Iterable[str], **settings: Any) -> Table:
        """Returns a table of those columns that a frame has; ``settings`` are other attributes of the table.

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
        """Returns the table as text or Markdown, without its title."""
        body = [[str(cell) for cell in row] for row in self._starred()]
        return "\n\n".join([text_table(self.head, body, self.num_texts, markdown), *map(str, self._notes())])

    def _starred(self) -> list[list[Cell]]:
        rows, column = [list(row) for row in self.body], self.num_texts - 1
        for number in self.marked:
            rows[number][column] = f"{rows[number][column]} *"
        return rows

    def _notes(self) -> list[Cell]:
        return [*([f"* {self.mark}."] if self.marked else []), *self.notes]

    def __html__(self) -> Markup:
        """Returns the table as HTML that scrolls in its own box."""
        numbers = [self._is_number(column) for column in range(len(self.head))]
        return html("table.html.j2", table=self, rows=self._starred(), notes=self._notes(), numbers=numbers)

    def _is_number(self, column: int) -> bool:
        cells = [row[column] for row in self.body]
        words = (isinstance(cell, Code) or (isinstance(cell, str) and cell[:1].isalpha()) for cell in cells)
        return column >= self.num_texts and not any(words)


@dataclass(frozen=True)
class Fold:
    """Tables of a page that are hidden until a reader clicks on their summary."""

    summary: str
    tables: Sequence[Table]

    def __html__(self) -> Markup:
        inner = Markup("\n").join(self.tables)
        return Markup("<details><summary>{}</summary>\n{}\n</details>").format(self.summary, inner)


def html(template: str, **content: Any) -> Markup:
    """Renders a template of the report; texts are escaped, except objects that render themselves as HTML."""
    return Markup(_TEMPLATES.get_template(template).render(content))


def csv_text(frame: pd.DataFrame, **settings: Any) -> str:
    """Returns a frame as CSV; texts that a spreadsheet would take for formulas are escaped."""
    return str(frame.map(as_cell).rename(columns=as_cell).to_csv(index=False, **settings))


def _cell(name: str, value: Any) -> Cell:
    return Code(value) if name in _CODE else cell_text(name, value)


def cost_words(name: str, number: float) -> str:
    """Returns a cost with its unit and its name."""
    return f"{cost_text(name, number)} {heading(name)}"


def range_text(name: str, values: pd.Series) -> str:
    """Returns the mean of a column, with its range if values differ; a dash if a value is missing."""
    if values.empty or values.isna().any():
        return DASH
    mean, lowest, highest = (cell_text(name, value) for value in (values.mean(), values.min(), values.max()))
    return mean if values.nunique() == 1 else f"{mean} ({lowest} to {highest})"


def repeats(keys: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Returns ``as in NAME`` for each key that an earlier name has, otherwise an empty text."""
    first: dict[Any, str] = {}
    pairs = zip(keys, names, strict=True)
    return ["" if first.setdefault(key, name) == name else f"as in {first[key]}" for key, name in pairs]
