"""Methods beside each other: what their clients get, and what it cost (FedTrans, Tables 2 and 3).

Costs are those of a run's ledger: multiply-accumulates of all clients' forward passes, and bytes both ways.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.analysis.clients import accuracy_spread
from lit_fednas.analysis.methods import COSTS, Methods, Metrics, each_run, validations
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, draw_line, label, legend, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import axis, short, spread, text_table
from lit_fednas.records import read_suite

_SPENT = ("macs", "bytes_down", "bytes_up")


def method_table(methods: Methods, rounds: tuple[int, int] | None = None) -> pd.DataFrame:
    """Returns each run's client accuracies and costs.

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
                clients = accuracy_spread({method: [run.folder]}).iloc[0]
                accuracy, iqr = clients["mean"], clients["iqr"]
            else:
                accuracy, iqr = _evaluated(run, *rounds)
            until = None if rounds is None else rounds[1]
            macs, down, up = _spent(run, until)
            rows.append((method, run.name, accuracy, iqr, macs, down + up, storage_bytes(run, until)))
    return pd.DataFrame(rows, columns=["method", "run", "accuracy", "iqr", "macs", "network", "storage"])


def _evaluated(run: Run, first: int, last: int) -> tuple[float, float]:
    """Returns mean accuracy and interquartile range over the evaluations within rounds."""
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
    """Writes a :func:`method_table` as FedTrans' Table 2: a row per method, means with least and greatest.

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
    """Returns MACs, bytes down and bytes up of all clients: of the ledger, or else of the rounds."""
    if run.ledger is not None and until is None:
        return [float(run.ledger["total"][name]) for name in _SPENT]
    clients = run.clients if until is None else run.clients[run.clients["round"] < until]
    return [float(clients[name].sum(min_count=1)) for name in _SPENT]


def _costs(values: pd.Series, unit: str) -> str:
    """Writes a mean, and the least and greatest where they differ; a dash where one is not known."""
    mean = short(values.mean(skipna=False), unit)
    if values.isna().any() or values.nunique() == 1:
        return mean
    return f"{mean} ({short(values.min(), unit)} to {short(values.max(), unit)})"


def levels_by_cost(methods: Methods) -> dict[str, dict[str, str]]:
    """Returns the evaluated subnets by ascending MACs; those of the same rank in all methods make a level.

    Returns:
        Each level's metric by method (``val/<subnet>/accuracy``), by the name of the first method's subnet.

    Raises:
        DataError: A run has no ``subnets-val.csv``, its runs' subnets differ, or methods have different numbers.
    """
    subnets = {method: _subnets(method, runs) for method, runs in methods.items()}
    first, names = next(iter(subnets.items()))
    for method, others in subnets.items():
        if len(others) != len(names):
            raise DataError(
                f"{method}: evaluated {len(others)} subnets, {first} {len(names)}; "
                f"say with --metric which to compare"
            )
    return {
        name: {method: f"val/{others[place]}/accuracy" for method, others in subnets.items()}
        for place, name in enumerate(names)
    }


def least_total(methods: Methods) -> int:
    """Returns the MACs of the run that has spent least.

    Raises:
        DataError: A run has no costs in its records.
    """
    return int(min(_total(run) for runs in methods.values() for run in runs))


def computation_table(methods: Methods, levels: Metrics, macs: float) -> pd.DataFrame:
    """Returns each run at its last validation whose cumulative MACs are at most the budget.

    Args:
        methods: Runs that differ in their seeds, by method.
        levels: The levels' metrics; a validation counts that has all of them.
        macs: The budget.

    Returns:
        ``method``, ``run``, ``rounds``, ``macs``, ``bytes_down``, ``bytes_up`` (until then), ``total_macs`` (of
        the whole run), then a column of accuracies per level.

    Raises:
        DataError: A run has never logged a metric, has no costs, or had spent more by its first validation.
    """
    rows = []
    for method, runs in methods.items():
        names = {level: metrics[method] for level, metrics in levels.items()}
        for run in runs:
            total = _total(run)
            rounds = validations(run, list(dict.fromkeys(names.values())))
            within = rounds[rounds["macs"] <= macs]
            if within.empty:
                raise DataError(
                    f"{run.folder}: had spent {rounds['macs'].iloc[0]:.4g} MACs by its first validation, which is "
                    f"more than the budget of {macs:.4g}; give more with --macs"
                )
            last = within.iloc[-1]
            costs = {name: int(last[name]) for name in ("rounds", *COSTS)}
            reached = {level: last[metric] for level, metric in names.items()}
            rows.append({"method": method, "run": run.name, **costs, "total_macs": total, **reached})
    return pd.DataFrame(rows)


def computation_markdown(table: pd.DataFrame, macs: float) -> str:
    """Writes a :func:`computation_table`: a row per method, accuracies in percent, means with least and greatest.

    A line below names the runs that ended before they had spent the budget, as they could have gone on.

    Args:
        table: The table.
        macs: The budget.
    """
    levels = list(table.columns[table.columns.get_loc("total_macs") + 1 :])
    costs = ["MACs", "bytes down", "bytes up"]
    body = []
    for method, rows in table.groupby("method", sort=False):
        figures = [spread(list(100 * rows[level])) for level in levels]
        spent = [short(rows[name].mean(), "" if name == "macs" else "B") for name in COSTS]
        rounds = f"{rows['rounds'].mean():.1f}".removesuffix(".0")
        body.append([str(method), str(len(rows)), *figures, rounds, *spent])
    text = text_table(
        ["method", "seeds", *(f"{level} (%)" for level in levels), "rounds", *costs], body, markdown=True
    )
    ended = table[table["total_macs"] < macs]
    names = ", ".join(f"{row['method']} {row['run']}" for _, row in ended.iterrows())
    return f"{text}\n\nEnded before the budget of {short(macs, 'MACs')}: {names}." if names else text


def computation_figure(methods: Methods, levels: Metrics, macs: float) -> Figure:
    """Draws accuracy over cumulative MACs: a panel per level, a line per method; dashed, the budget.

    At each cost a line has the mean over the seeds of the last validation until then, from where all seeds have
    one to where the first of them ends; the band goes from the least to the greatest.

    Args:
        methods: Runs that differ in their seeds, by method.
        levels: The levels' metrics.
        macs: The budget.

    Raises:
        DataError: A run has never logged a metric.
    """
    figure = new_figure(len(levels), in_row=3)
    panels = dict(zip(levels, figure.axes, strict=True))
    curves: dict[tuple[str, str], list[pd.Series]] = {}
    for level, method, _, rows in each_run(methods, levels):
        reached = rows.set_index("macs")["accuracy"]
        curves.setdefault((level, method), []).append(reached[~reached.index.duplicated(keep="last")])
    scale, text = axis(
        "total_macs", max([macs, *(float(one.index[-1]) for seeds in curves.values() for one in seeds)])
    )
    for (level, method), seeds in curves.items():
        costs = np.unique(np.concatenate([one.index for one in seeds]))
        low, high = max(one.index[0] for one in seeds), min(one.index[-1] for one in seeds)
        costs = costs[(costs >= low) & (costs <= high)]
        both = 100 * pd.concat([one.reindex(costs, method="ffill") for one in seeds], axis=1)
        bounds, place = (both.min(axis=1), both.max(axis=1)), list(methods).index(method)
        style = {"drawstyle": "steps-post"}
        draw_line(panels[level], costs / scale, both.mean(axis=1), bounds, place, method, **style)
    for level, axes in panels.items():
        axes.axvline(macs / scale, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_title(level, fontsize=9)
        label(axes, text, "accuracy (%)")
        axes.set_xlim(left=0)
    legend(figure)
    return figure


def _subnets(method: str, runs: Sequence[Run]) -> list[str]:
    """Returns the subnets that all runs of a method have evaluated, by ascending MACs."""
    names_by_run = []
    for run in runs:
        table = run.subnets("val").sort_values("macs", kind="stable")
        if table.empty:
            raise DataError(
                f"{run.folder}: has no subnets-val.csv, as it has not ended; say with --metric what to compare"
            )
        names_by_run.append(list(table["subnet"]))
    if any(names != names_by_run[0] for names in names_by_run):
        raise DataError(f"{method}: its runs evaluated different subnets; say with --metric which to compare")
    return names_by_run[0]


def _total(run: Run) -> int:
    """Returns what all clients of a run have spent, in MACs."""
    macs = run.clients["macs"]
    if macs.isna().all():
        raise DataError(f"{run.folder}: its records count no MACs; train it again with the present version")
    return int(macs.sum())
