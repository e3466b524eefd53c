"""Fairness: the spread over clients of a metric, on each client's test split with the network that it would use.

A search, a fine-tuning, or a run with ``deployed_accuracy`` writes ``clients.csv``. As in FedorAS' Table 7 and Fig. 4
(section 4.4), and FedTrans' Fig. 6 and "IQR", every client counts once, whatever its number of examples.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pandas as pd

from lit_fednas.analysis.charts import Chart, line_chart
from lit_fednas.analysis.tables import Table
from lit_fednas.errors import DataError
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.files import read_json, read_table, reading
from lit_fednas.records.forms import SETTINGS
from lit_fednas.records.run import CLIENT_SCORE_COLUMNS, CLIENTS_FILE, directions_of
from lit_fednas.records.tiers import read_cell

#: Folders with ``clients.csv`` by the method's name; the runs of a method differ in their seeds.
Groups: TypeAlias = Mapping[str, Sequence[Path | str]]


def read_client_scores(folder: Path | str) -> pd.DataFrame:
    """Reads the ``clients.csv`` of a search, a fine-tuning or a run; ``attrs`` hold ``metric`` and ``higher``."""
    path = Path(folder) / CLIENTS_FILE
    if not path.is_file():
        raise DataError(f"{path}: is missing; set data.client_test, so that clients have test data")
    directions = directions_of(path.parent)
    metric = next(iter(directions))
    columns = list(dict.fromkeys((*CLIENT_SCORE_COLUMNS, metric, "loss")))
    texts = read_table(path, columns)
    with reading(path):
        names = [*columns, *(["arch"] if texts and "arch" in texts[0] else [])]
        rows = [[row["tier"] if name == "tier" else read_cell(name, row[name]) for name in names] for row in texts]
        table = pd.DataFrame(rows, columns=names).astype({metric: float, "loss": float})
        if table[metric].isna().any() and metric != "loss":
            raise ValueError(f"a client has no {metric}")
    if table.empty:
        raise DataError(f"{path}: holds no client; give one row per client")
    for duplicate in table["client"][table["client"].duplicated()]:
        raise DataError(f"{path}: client {duplicate} is duplicated; give one row per client")
    table["tier"] = pd.Categorical(table["tier"], _tiers(path.parent, set(table["tier"])), ordered=True)
    table.attrs = {"metric": metric, "higher": directions[metric] is not False}
    return table


def _tiers(folder: Path, names: set[str]) -> list[str]:
    """Returns the tiers in the order of ``settings.json``, then the others by name and number."""
    settings = read_json(folder / "settings.json", SETTINGS)
    listed = [tier["name"] for tier in settings.get("tiers") or [] if tier["name"] in names]
    return listed + sorted(names - set(listed), key=lambda name: [part.zfill(9) for part in re.split(r"(\d+)", name)])


def _read(groups: Groups) -> tuple[str, dict[str, list[pd.DataFrame]]]:
    """Returns the metric of all runs, and their client scores by the method's name."""
    for name, folders in groups.items():
        if not folders:
            raise DataError(f"{name}: has no folder; give at least one with {CLIENTS_FILE}")
    tables = {name: [read_client_scores(folder) for folder in folders] for name, folders in groups.items()}
    metrics = sorted({str(table.attrs["metric"]) for runs in tables.values() for table in runs})
    if len(metrics) > 1:
        raise DataError(f"clients: are measured by {' and by '.join(metrics)}; compare runs of one task")
    return metrics[0], tables


def fairness_table(groups: Groups) -> pd.DataFrame:
    """Returns the mean metric of each tier's clients and its spread (FedorAS, Table 7; FedTrans, IQR).

    The columns are ``name``, ``tier`` (``*`` first), ``runs``, ``clients``, and ``mean``, ``deviation``, ``iqr`` and
    ``worst`` of the metric (accuracies from 0 to 1), which ``attrs`` name. Each figure is an average over the runs that
    have clients of the tier. The deviation divides by the number of clients, because they are no sample of others.
    """
    metric, methods = _read(groups)
    rows = []
    for name, tables in methods.items():
        for tier in dict.fromkeys(tier for table in tables for tier in (ALL_TIERS, *table["tier"].cat.categories)):
            runs = [table if tier == ALL_TIERS else table[table["tier"] == tier] for table in tables]
            figures = pd.DataFrame([_figures(run[metric], run.attrs["higher"]) for run in runs if len(run)])
            rows.append({"name": name, "tier": tier, "runs": len(figures), **figures.mean()})
    table = pd.DataFrame(rows)
    table.attrs["metric"] = metric
    return table


def _figures(values: pd.Series, higher: bool) -> dict[str, float]:
    low, high = values.quantile([0.25, 0.75])
    return {
        "clients": len(values),
        "mean": values.mean(),
        "deviation": values.std(ddof=0),
        "iqr": high - low,
        "worst": values.min() if higher else values.max(),
    }


def fairness_rows(table: pd.DataFrame, name: str, *columns: str) -> Table:
    """Returns a :func:`fairness_table` for display: ``name`` titles its first column, ``columns`` add others."""
    metric = table.attrs["metric"]
    words = {"mean": "mean", "deviation": "deviation_of", "worst": "worst", "iqr": "interquartile_range_of"}
    figures = {column: f"{word}_{metric}" for column, word in words.items()}
    titled = table.replace({"tier": {ALL_TIERS: "all"}}).rename(columns={"name": name, **figures})
    return replace(Table.of(titled, [name, *columns, "clients", *figures.values()]), frame=table)


def fairness_chart(groups: Groups) -> Chart:
    """Draws clients by ascending metric, with the deviation over runs as a band (FedorAS, Fig. 4)."""
    metric, methods = _read(groups)
    lines = {}
    for name, tables in methods.items():
        if len({len(table) for table in tables}) > 1:
            raise DataError(f"{name}: its runs have different numbers of clients; compare runs with equal numbers")
        scores = pd.DataFrame([table[metric].sort_values(ignore_index=True) for table in tables])
        mean, deviation = scores.mean(), scores.std().fillna(0)
        low, high = ((mean + sign * deviation).clip(0, 1 if metric == "accuracy" else None) for sign in (-1, 1))
        lines[name] = pd.DataFrame({"mean": mean, "min": low, "max": high}).set_axis(scores.columns + 1)
    return line_chart(f"Clients by {metric}", lines, "client", metric)
