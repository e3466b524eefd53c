"""Results of studies: the finished runs beside each other, and measurements that are kept in CSV files.

A kept column ``accuracy_percent`` has its spread (the lowest and the highest seed, or quartiles) in
``accuracy_percent_low`` and ``accuracy_percent_high``; the last word of a name is its unit (:data:`UNITS`), if any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import RANGE, label, legend, log_axis, look, name_ticks, new_figure
from lit_fednas.analysis.tables import Table, read_csv, scale_of
from lit_fednas.errors import DataError
from lit_fednas.formatting import figure_text, spread
from lit_fednas.records.files import read_json, reading
from lit_fednas.studies.runs import STUDY_FILE

#: How the units at the end of columns' names are written.
UNITS = {"percent": "%", "minutes": "min", "seconds": "s", "ms": "ms", "us": "µs"}
UNITS |= {"gb": "GB", "mb": "MB", "kb": "kB", "mib": "MiB", "tmacs": "TMACs", "gmacs": "GMACs", "mmacs": "MMACs"}
#: The subnets whose metric is drawn and compared, as far as it was logged.
SUBNETS = ("smallest", "mean", "largest")
_MOST_VALUES = 6  # of a parameter; with more, they are taken for draws from a range


def read_sweep(folder: Path | str) -> pd.DataFrame:
    """Returns one row per run of a study's folder, also of those that have not finished.

    Returns:
        The parameters' columns, then ``seed``, ``status``, ``rounds`` (done), ``folder``, then the last value of
        every metric that was logged.

    Raises:
        DataError: The folder holds no study.
    """
    path = Path(folder) / STUDY_FILE
    if not path.exists():
        raise DataError(f"{folder}: holds no {STUDY_FILE}; make one with lit-fednas study")
    metrics = []
    with reading(path):
        rows = read_json(path, ["runs"])["runs"]
        runs = [Run(path.parent / row["folder"]) for row in rows]
        parameters = pd.DataFrame([row["parameters"] for row in rows])
    for row, run in zip(rows, runs, strict=True):
        row["rounds"] = len(run.rounds)
        last = run.rounds.drop(columns="round").ffill().tail(1).to_dict("records")
        metrics.append(last[0] if last else {})
    listed = pd.DataFrame(rows, columns=["seed", "status", "rounds", "folder"])
    table = pd.concat([parameters, listed, pd.DataFrame(metrics)], axis=1)
    table.attrs["metric"] = runs[0].metric if runs else "accuracy"
    return table


def swept(table: pd.DataFrame) -> list[str]:
    """Returns the parameters of :func:`read_sweep`'s table that have more than one value."""
    names = table.columns[: table.columns.get_loc("seed")]
    return [name for name in names if table[name].nunique(dropna=False) > 1]


def compare(table: pd.DataFrame) -> Table:
    """Returns a row per combination: how many seeds have finished, and mean and range of their :data:`SUBNETS`."""
    done, metrics = _finished(table)
    names, rows = swept(table), []
    scale, _ = scale_of(metrics[0].rpartition("/")[2])
    for _, runs in done.groupby(names or ["status"], sort=False, dropna=False):
        values = (runs[name].iloc[0] for name in names)
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        rated = [spread(runs[metric].dropna(), digits=2, scale=scale) for metric in metrics]
        rows.append([*cells, str(runs["seed"].nunique()), *rated])
    head = [*(name.split(".")[-1] for name in names), "seeds", *(metric.removeprefix("val/") for metric in metrics)]
    return Table(head, rows, left=len(names))


def sweep_figure(table: pd.DataFrame) -> Figure:
    """Returns a panel per parameter: every run as a point, and per value the mean and range of its runs.

    A parameter of many numbers, as a random sweep draws them, has its points only, on a logarithmic axis if they
    span more than a factor of 20. Runs of :func:`read_sweep` that have not finished are left out.

    Raises:
        DataError: No run has finished, or none has such a metric, or no parameter has two values.
    """
    done, metrics = _finished(table)
    names = swept(done)
    if not names:
        raise DataError("sweep: the finished runs do not differ in any parameter; finish more of them")
    figure = new_figure(len(names))
    for axes, name in zip(figure.axes, names, strict=True):
        _panel(axes, done, name, metrics)
    for axes in figure.axes[1:]:
        axes.sharey(figure.axes[0])
        axes.set_ylabel("")
    legend(figure)
    return figure


def _panel(axes: Axes, done: pd.DataFrame, name: str, metrics: Sequence[str]) -> None:
    numeric = is_numeric_dtype(done[name]) and not is_bool_dtype(done[name]) and done[name].notna().all()
    column = done[name] if numeric else done[name].map(str)
    values = sorted(set(column)) if numeric else list(column.drop_duplicates())
    drawn = numeric and len(values) > _MOST_VALUES
    for index, metric in enumerate(metrics):
        style = {**look(index), "label": metric.split("/")[1]}
        if drawn or not numeric:
            style["linestyle"] = ""  # names have no order
        if drawn:
            axes.plot(column, done[metric], **style, markersize=4, alpha=0.8)
            continue
        seeds = done.groupby(column, sort=numeric)[metric].agg(RANGE)
        xs = pd.Series(range(len(values)), values) + 0.12 * (index - (len(metrics) - 1) / 2)  # beside the others
        axes.vlines(xs, seeds["min"], seeds["max"], color=style["color"], linewidth=0.8)
        axes.plot(xs, seeds["mean"], **style, markersize=5, linewidth=1.2)
        axes.plot(column.map(xs), done[metric], ".", color=style["color"], markersize=3, alpha=0.6)
    if not drawn:
        name_ticks(axes, values)
        axes.set_xlim(-0.5, len(values) - 0.5)
    elif values[0] > 0 and values[-1] > 20 * values[0]:
        log_axis(axes)
    label(axes, name, f"validation {done.attrs.get('metric', 'accuracy')}")


def _finished(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Returns the finished runs, and the metrics to look at."""
    done = table[table["status"] == "finished"]
    if done.empty:
        raise DataError(f"sweep: none of {len(table)} runs has finished; see their status, and start them again")
    usual = [f"val/{subnet}/{table.attrs.get('metric', 'accuracy')}" for subnet in SUBNETS]
    known = [name for name in usual if name in table]
    if not known:
        raise DataError(f"sweep: no run logged {', '.join(usual)}; choose from {', '.join(table.columns)}")
    return done, known


def spread_table(path: Path | str) -> pd.DataFrame:
    """Returns a kept file's table to be shown: digits as in the file, a measurement and its spread in one cell."""
    table = read_csv(path, dtype=str, keep_default_na=False)
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
