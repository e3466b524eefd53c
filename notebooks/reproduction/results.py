"""Measurements that are kept in CSV files.

A kept column ``accuracy_percent`` has its spread (the lowest and the highest seed, or quartiles) in
``accuracy_percent_low`` and ``accuracy_percent_high``; the last word of a name is its unit (:data:`UNITS`), if any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from lit_fednas.analysis.style import RANGE, label, look
from lit_fednas.formatting import figure_text
from lit_fednas.records.files import read_table

#: How the units at the end of columns' names are written.
UNITS = {"percent": "%", "minutes": "min", "seconds": "s", "ms": "ms", "us": "µs"}
UNITS |= {"gb": "GB", "mb": "MB", "kb": "kB", "mib": "MiB", "tmacs": "TMACs", "gmacs": "GMACs", "mmacs": "MMACs"}


def spread_table(path: Path | str) -> pd.DataFrame:
    """Returns a kept file's table to be shown: digits as in the file, a measurement and its spread in one cell."""
    table = pd.DataFrame(read_table(Path(path)), dtype=str)
    for column in [name for name in table if f"{name}_low" in table]:
        spread = " (" + table.pop(f"{column}_low") + " to " + table.pop(f"{column}_high") + ")"
        table[column] += spread.where(spread != " ( to )", "")
    return table.rename(columns=heading)


def heading(column: str) -> str:
    """Returns the name of a column as a heading, such as ``test accuracy (%)``."""
    *words, last = column.split("_")
    if last not in UNITS:
        return " ".join([*words, last])
    return f"{' '.join(words)} ({UNITS[last]})" if words else UNITS[last]


def means(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns a measurement of a kept table as ``mean``, ``min`` and ``max``, equal where no spread is kept."""
    bounds = [table.get(f"{column}_{end}", table[column]) for end in ("low", "high")]
    return pd.concat([table[column], *bounds], axis=1, keys=RANGE).dropna(subset="mean")


def draw_rows(axes: Axes, series: Mapping[str, pd.DataFrame], x: str) -> None:
    """Draws measurements as points, a row below the other, with a line over its spread."""
    rows = list(dict.fromkeys(row for table in series.values() for row in table.index))
    for index, (name, table) in enumerate(series.items()):
        shift = 0.3 * (index - (len(series) - 1) / 2) / max(len(series) - 1, 1)  # so that lines do not overlap
        places = [rows.index(row) + shift for row in table.index]
        ends = [(table["mean"] - table["min"]).clip(lower=0), (table["max"] - table["mean"]).clip(lower=0)]
        style = {**look(index), "linestyle": "", "markersize": 4, "elinewidth": 1.3}
        axes.errorbar(table["mean"], places, xerr=ends, label=figure_text(name), **style)
    axes.set_yticks(range(len(rows)), [figure_text(row, 40) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    label(axes, x, "")
