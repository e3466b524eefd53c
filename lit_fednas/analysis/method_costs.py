"""Methods beside each other: what their clients get, and what it cost (FedTrans, Tables 2 and 3).

Costs are those of a run's ledger: multiply-accumulates of all clients' forward passes, and bytes both ways.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lit_fednas.analysis.client_spread import accuracy_spread
from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, spread, text_table
from lit_fednas.records import read_suite

_SPENT = ("macs", "bytes_down", "bytes_up")


def method_table(methods: Methods, rounds: tuple[int, int] | None = None) -> pd.DataFrame:
    """Each run: its clients' accuracies, and its costs.

    Args:
        methods: Runs that differ in their seeds, by method; each with ``clients.csv``.
        rounds: From the first round on and up to the second, counted from 1, for runs of different lengths and to
            even out what goes up and down from round to round: the accuracies are means over the evaluations
            within, and the costs are those until the second. If not given, it is the end of each run.

    Returns:
        ``method``, ``run``, ``accuracy`` (mean over clients, whatever the number of their examples), ``iqr``,
        ``macs``, ``network`` (bytes both ways), ``storage`` (bytes of all models that the server keeps); NaN
        where the records do not tell a cost.

    Raises:
        DataError: A run has no ``clients.csv``, or it is broken; or it has not evaluated its clients within the
            rounds, or ended before.
    """
    rows = []
    for method, runs in methods.items():
        for run in runs:
            if rounds is None:
                found = accuracy_spread({method: [run.folder]}).iloc[0]
                accuracy, iqr = found["mean"], found["iqr"]
            else:
                accuracy, iqr = _evaluated(run, *rounds)
            until = None if rounds is None else rounds[1]
            macs, down, up = _spent(run, until)
            rows.append((method, run.name, accuracy, iqr, macs, down + up, storage_bytes(run, until)))
    return pd.DataFrame(rows, columns=["method", "run", "accuracy", "iqr", "macs", "network", "storage"])


def _evaluated(run: Run, first: int, last: int) -> tuple[float, float]:
    """Mean accuracy and interquartile range over the evaluations within rounds."""
    table = run.rounds
    if len(table) < last:
        raise DataError(f"{run.folder}: has {len(table)} rounds; name rounds up to that, not {last}")
    within = table[table["round"].between(first - 1, last - 1)]
    names = ["deployed/accuracy", "deployed/iqr"]
    if any(name not in within or within[name].isna().all() for name in names):
        raise DataError(
            f"{run.folder}: has evaluated no clients in the rounds {first} to {last}; train with deployed_accuracy"
        )
    accuracy, iqr = (float(within[name].mean()) for name in names)
    return accuracy, iqr


def storage_bytes(run: Run, until: int | None = None) -> float:
    """Bytes of the models that the server keeps, or kept after so many rounds.

    A run of a growing suite keeps all of its models. Of another, whose subnets share their weights, it is the
    largest evaluated subnet, which must be the whole network for that; NaN if none was evaluated.
    """
    suite = read_suite(run.folder)
    if suite is not None:
        there = [model for model in suite["models"] if until is None or (model["round"] or 0) < until]
        return float(sum(model["bytes"] for model in there))
    evaluated = [size for split in ("val", "test") for size in run.subnets(split)["bytes"]]
    return float(max(evaluated, default=float("nan")))


def method_markdown(table: pd.DataFrame) -> str:
    """A :func:`method_table` as FedTrans' Table 2: a row per method, means with least and greatest.

    Accuracies are in percent; the last column says how many times the first method's multiply-accumulates a method
    has taken.
    """
    head = ["method", "seeds", "accuracy (%)", "IQR (%)", "cost (MACs)", "network", "storage", "× cost"]
    first = table["method"].iloc[0]
    body = []
    for method, rows in table.groupby("method", sort=False):
        accuracies = [spread(list(100 * rows[name]), digits=2) for name in ("accuracy", "iqr")]
        costs = [_costs(rows[name], unit) for name, unit in (("macs", ""), ("network", "B"), ("storage", "B"))]
        times = rows["macs"].mean(skipna=False) / table[table["method"] == first]["macs"].mean(skipna=False)
        body.append([str(method), str(len(rows)), *accuracies, *costs, "–" if np.isnan(times) else f"{times:.1f}"])
    return text_table(head, body, markdown=True)


def _spent(run: Run, until: int | None) -> list[float]:
    """MACs, bytes down and bytes up of all clients: of the ledger, or of the rounds if the run has not ended."""
    if run.ledger is not None and until is None:
        return [float(run.ledger["total"][name]) for name in _SPENT]
    clients = run.clients if until is None else run.clients[run.clients["round"] < until]
    return [float(clients[name].sum(min_count=1)) for name in _SPENT]


def _costs(values: pd.Series, unit: str) -> str:
    """Mean, and the least and greatest where they differ; a dash where one is not known."""
    mean = short(values.mean(skipna=False), unit)
    if values.isna().any() or values.nunique() == 1:
        return mean
    return f"{mean} ({short(values.min(), unit)} to {short(values.max(), unit)})"
