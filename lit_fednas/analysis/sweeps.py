"""The runs of a sweep beside each other: as a table, and as a figure like SuperFed's Figure 5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from lit_fednas.analysis.runs import Run, read_run
from lit_fednas.analysis.style import RANGE, label, legend, look, name_ticks, new_figure
from lit_fednas.analysis.tables import leaves
from lit_fednas.errors import DataError
from lit_fednas.formatting import figure_text
from lit_fednas.records.files import read_json

#: Within a sweep's folder: ``runs``, a list of ``parameters`` (values by name), ``seed``, ``folder``, ``status``.
SWEEP_FILE = "study.json"
#: The subnets whose metric is drawn and compared where nothing else is asked for, as far as it was logged.
SUBNETS = ("smallest", "mean", "largest")
_MOST_VALUES = 6  # of a parameter; with more, they are taken for draws from a range
_PLACES = ("trainer.logger", "ckpt_path", "config")  # where a run writes, and where it went on from


def read_sweep(where: Path | str | Sequence[Path | str]) -> pd.DataFrame:
    """Returns one row per run, also of those that have not finished.

    Args:
        where: The folder of a sweep, or the folders of any runs: then the parameters are the settings that differ
            between their ``config.yaml``.

    Returns:
        The parameters' columns, then ``seed``, ``status``, ``rounds`` (done), ``folder``, then the last value of
        every metric that was logged.

    Raises:
        DataError: The folder holds no sweep, or no run is given.
    """
    rows = _listed(Path(where)) if isinstance(where, str | Path) else _compared([read_run(path) for path in where])
    if not rows:
        raise DataError(f"{where}: no runs to compare; give a sweep's folder or those of runs")
    own = pd.DataFrame(rows, columns=["seed", "status", "rounds", "folder"])
    parameters, metrics = (pd.DataFrame([row[name] for row in rows]) for name in ("parameters", "metrics"))
    table = pd.concat([parameters, own, metrics], axis=1)
    table.attrs["metric"] = rows[0]["metric"]
    return table


def swept(table: pd.DataFrame) -> list[str]:
    """Returns the parameters of :func:`read_sweep`'s table that have more than one value."""
    names = table.columns[: table.columns.get_loc("seed")]
    return [name for name in names if table[name].nunique(dropna=False) > 1]


def compare(table: pd.DataFrame, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns each combination's metrics over its seeds; runs that have not finished are left out.

    Args:
        table: From :func:`read_sweep`.
        metrics: Columns; the task's metric of :data:`SUBNETS` if not given.

    Returns:
        The parameters, ``seeds`` (how many), and per metric its ``mean``, ``low`` and ``high`` (least and
        greatest) as ``<metric> <word>``.
    """
    done, metrics = _finished(table, metrics)
    names = swept(table) or ["status"]
    groups = done.groupby(names, sort=False, dropna=False)
    parts = [groups["seed"].nunique().rename("seeds")]
    for metric in metrics:
        parts.append(groups[metric].agg(mean="mean", low="min", high="max").add_prefix(f"{metric} "))
    return pd.concat(parts, axis=1).reset_index()


def sweep_figure(table: pd.DataFrame, metrics: Sequence[str] | None = None) -> Figure:
    """Returns a panel per parameter: every run as a point, and per value the mean and range of its runs.

    A parameter of many numbers, as a random sweep draws them, has its points only, on a logarithmic axis if they
    span more than a factor of 20. Runs that have not finished are left out.

    Args:
        table: From :func:`read_sweep`.
        metrics: Columns, a line each; the task's metric of :data:`SUBNETS` if not given.

    Raises:
        DataError: No run has finished, or none has such a metric, or no parameter has two values.
    """
    done, metrics = _finished(table, metrics)
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
        style = {
            **look(index),
            "label": figure_text(metric.removeprefix("val/").removesuffix(f"/{done.attrs.get('metric', 'accuracy')}")),
        }
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
        axes.set_xscale("log")
    measured = {metric.rpartition("/")[2] for metric in metrics}
    label(axes, name, f"validation {measured.pop()}" if len(measured) == 1 else "")


def _finished(table: pd.DataFrame, metrics: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """Returns the finished runs, and the metrics to look at."""
    done = table[table["status"] == "finished"]
    if done.empty:
        raise DataError(f"sweep: none of {len(table)} runs has finished; see their status, and start them again")
    usual = [f"val/{subnet}/{table.attrs.get('metric', 'accuracy')}" for subnet in SUBNETS]
    wanted = [name for name in usual if name in table] if metrics is None else list(metrics)
    missing = [name for name in wanted or usual if name not in table]
    if missing:
        raise DataError(f"sweep: no run logged {', '.join(missing)}; choose from {', '.join(table.columns)}")
    return done, wanted


def _listed(folder: Path) -> list[dict[str, Any]]:
    """Returns the runs that ``sweep.json`` lists."""
    path = folder / SWEEP_FILE
    if not path.exists():
        raise DataError(f"{folder}: holds no {SWEEP_FILE}; make one with lit-fednas study, or give the runs' folders")
    runs = read_json(path, ["runs"])["runs"]
    return [{**run, **_outcome(Run(folder / run["folder"]))} for run in runs]


def _compared(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns any runs, with the settings in which they differ."""
    settings = [
        {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in leaves(run.settings)}
        for run in runs
    ]
    names = dict.fromkeys(name for one in settings for name in one if not name.startswith(_PLACES))
    names.pop("seed_everything", None)
    differ = [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
    rows = []
    for run, one in zip(runs, settings, strict=True):
        parameters = {name: one.get(name) for name in differ}
        row = {"parameters": parameters, "seed": one.get("seed_everything"), "folder": run.name, **_outcome(run)}
        row["status"] = "finished" if row["rounds"] == one.get("trainer.max_rounds") else "unfinished"
        rows.append(row)
    return rows


def _outcome(run: Run) -> dict[str, Any]:
    """Returns how many rounds a run has done, the last value of each metric, and the metric that counts most."""
    last = {name: values.dropna().iloc[-1:] for name, values in run.rounds.drop(columns="round").items()}
    metrics = {name: one.iloc[0] for name, one in last.items() if len(one)}
    return {"rounds": len(run.rounds), "metrics": metrics, "metric": run.metric}
