"""What a page's sections are made of: texts, tables, charts, drawings and pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.formatting import short

_LARGE = 10_000
_PIXELS = 90  # at least, per inch of a picture: its 8 pt are then 10 pixels


@dataclass(frozen=True)
class Code:
    """A cell of a table with an architecture's text, which may break after its commas."""

    text: str


@dataclass(frozen=True)
class Bar:
    """A cell with a bar: a share of its width, a text upon it, and what it says on hovering."""

    share: float
    text: str
    tip: str = ""


Cell: TypeAlias = str | Code | Bar


@dataclass(frozen=True)
class Table:
    """A table that scrolls in its own box.

    Attributes:
        head: The columns' names.
        rows: As many cells each.
        texts: How many columns are texts; of the others, those without any word or architecture are numbers.
        title: Above the table; may be empty.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: int = 1
    title: str = ""

    def is_number(self, column: int) -> bool:
        """Returns whether a column is aligned as numbers."""
        cells = [row[column] for row in self.rows]
        words = (isinstance(cell, Code) or (isinstance(cell, str) and cell[:1].isalpha()) for cell in cells)
        return column >= self.texts and not any(words)


@dataclass(frozen=True)
class Fold:
    """Tables that are hidden until their summary is clicked."""

    summary: str
    tables: Sequence[Table]


@dataclass(frozen=True)
class Entry:
    """A line's name in a legend.

    Attributes:
        name: The name.
        traces: Which of the figure's traces it shows and hides.
        index: Of its look (:func:`lit_fednas.analysis.style.look`); ``None`` for the wide grey one.
    """

    name: str
    traces: Sequence[int]
    index: int | None


@dataclass(frozen=True)
class Chart:
    """A chart that plotly draws in the reader's browser.

    Attributes:
        title: Above the chart.
        figure: Data and layout as plotly's JSON.
        height: In pixels.
        width: In pixels, where the chart is not as wide as its box; it then scrolls.
        legend: Below the chart.
    """

    title: str
    figure: str
    height: int = 280
    width: int | None = None
    legend: Sequence[Entry] = ()


@dataclass(frozen=True)
class Stages:
    """An architecture in boxes: per stage a bar for each block, ``None`` for a block that it leaves out."""

    title: str
    arch: str
    stages: Sequence[Sequence[Bar | None]] = ()


@dataclass(frozen=True)
class Picture:
    """An image that is part of the page, and scrolls where it would be too small to be read.

    Attributes:
        title: Above the image.
        source: A data URI.
        width: The least, in pixels.
    """

    title: str
    source: str
    width: int


@dataclass(frozen=True)
class Charts:
    """Charts, drawings and pictures beside each other."""

    charts: Sequence[Chart | Stages | Picture]


Block: TypeAlias = str | Table | Fold | Charts


def frame_table(frame: pd.DataFrame, texts: int = 1, title: str = "") -> Table:
    """Returns a table of a frame's columns, without its index.

    Args:
        frame: Texts stay as they are (architectures in a column ``arch``); numbers have four digits, from 10,000 on a
            prefix as k and M, and missing ones are dashes.
        texts: How many columns are texts.
        title: Above the table.

    Example:
        >>> frame_table(pd.DataFrame({"method": ["a", "b"], "accuracy": [0.51237, None], "macs": [24_123, 70]})).rows
        [['a', '0.5124', '24.1 k'], ['b', '–', '70']]
    """
    head = [str(name) for name in frame.columns]
    rows = [
        [_cell(name, value) for name, value in zip(head, row, strict=True)] for row in frame.itertuples(index=False)
    ]
    return Table(head, rows, texts, title)


def picture(title: str, figure: Figure) -> Picture:
    """Returns a figure of matplotlib as an image in the page."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(title, source, round(_PIXELS * figure.get_figwidth()))


def _cell(column: str, value: object) -> Cell:
    if isinstance(value, str):
        return Code(value) if column == "arch" else value
    if pd.isna(value):
        return "–"
    if isinstance(value, float | int) and abs(value) >= _LARGE:
        return short(value)
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
