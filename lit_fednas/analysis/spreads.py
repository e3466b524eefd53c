"""Measurements that are kept in CSV files, each with its spread: the lowest and the highest seed, or quartiles.

A column ``accuracy_percent`` has the spread in ``accuracy_percent_low`` and ``accuracy_percent_high``. The last word of
a column's name is its unit (:data:`UNITS`), if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from lit_fednas.analysis.style import RANGE, label, look
from lit_fednas.formatting import figure_text

#: How the units at the end of columns' names are written.
UNITS = {
    "percent": "%",
    "minutes": "min",
    "seconds": "s",
    "ms": "ms",
    "us": "µs",
    "gb": "GB",
    "mb": "MB",
    "kb": "kB",
    "mib": "MiB",
    "tmacs": "TMACs",
    "gmacs": "GMACs",
    "mmacs": "MMACs",
}


def spread_table(path: Path | str) -> pd.DataFrame:
    """Returns a file's table to be shown: digits as they are in the file, a measurement and its spread in one cell.

    Args:
        path: A CSV file.

    Returns:
        Text: ``50.1 (49.6 to 50.7)`` where there is a spread, columns as ``accuracy (%)``.
    """
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in [name for name in table if f"{name}_low" in table]:
        spread = " (" + table.pop(f"{column}_low") + " to " + table.pop(f"{column}_high") + ")"
        table[column] += spread.where(spread != " ( to )", "")
    return table.rename(columns=heading)


def heading(column: str) -> str:
    """Returns the name of a column as a heading.

    Example:
        >>> heading("test_accuracy_percent"), heading("gb"), heading("rounds")
        ('test accuracy (%)', 'GB', 'rounds')
    """
    *words, last = column.split("_")
    if last not in UNITS:
        return " ".join([*words, last])
    return f"{' '.join(words)} ({UNITS[last]})" if words else UNITS[last]


def means(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns a column with its spread, as figures draw it.

    Args:
        table: As it is in the file, with what names a row as its index.
        column: The measurement.

    Returns:
        ``mean``, ``min`` and ``max``, equal where no spread is kept; no rows without a measurement.
    """
    bounds = [table.get(f"{column}_{end}", table[column]) for end in ("low", "high")]
    return pd.concat([table[column], *bounds], axis=1, keys=RANGE).dropna(subset="mean")


def draw_rows(axes: Axes, series: Mapping[str, pd.DataFrame], x: str) -> None:
    """Draws measurements as points, a row below the other, with a line over its spread.

    Args:
        axes: The panel.
        series: A :func:`means` by its name in the legend; the index names the rows, which series may share.
        x: Label of the x axis.
    """
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
