"""Methods at equal computation: what each has reached when its clients had spent the same.

Computation is what a run's records count: multiply-accumulates of the clients' forward passes, over all clients
and rounds (``lit_fednas.costs.ledger``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.analysis.methods import COSTS, Methods, Metrics, each_run, validations
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import axis, short, spread, text_table


def levels_by_cost(methods: Methods) -> dict[str, dict[str, str]]:
    """The evaluated subnets of each method in the order of their MACs; those of one place make a level.

    Returns:
        Each level's metric by method (``val/<subnet>/accuracy``), by the name of the first method's subnet.

    Raises:
        DataError: A run has no ``subnets-val.csv``, its runs' subnets differ, or methods have different numbers.
    """
    found = {method: _subnets(method, runs) for method, runs in methods.items()}
    first, names = next(iter(found.items()))
    for method, others in found.items():
        if len(others) != len(names):
            raise DataError(
                f"{method}: evaluated {len(others)} subnets, {first} {len(names)}; "
                f"say with --metric which to compare"
            )
    return {
        name: {method: f"val/{others[place]}/accuracy" for method, others in found.items()}
        for place, name in enumerate(names)
    }


def least_total(methods: Methods) -> int:
    """What the run has spent whose clients have spent least, in MACs.

    Raises:
        DataError: A run has no costs in its records.
    """
    return int(min(_total(run) for runs in methods.values() for run in runs))


def computation_table(methods: Methods, levels: Metrics, macs: float) -> pd.DataFrame:
    """Each run at its last validation whose cumulated MACs are at most the budget.

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
            found = validations(run, list(dict.fromkeys(names.values())))
            within = found[found["macs"] <= macs]
            if within.empty:
                raise DataError(
                    f"{run.folder}: had spent {found['macs'].iloc[0]:.4g} MACs by its first validation, which is "
                    f"more than the budget of {macs:.4g}; give more with --macs"
                )
            last = within.iloc[-1]
            costs = {name: int(last[name]) for name in ("rounds", *COSTS)}
            reached = {level: last[metric] for level, metric in names.items()}
            rows.append({"method": method, "run": run.name, **costs, "total_macs": total, **reached})
    return pd.DataFrame(rows)


def computation_markdown(table: pd.DataFrame, macs: float) -> str:
    """A :func:`computation_table`: a row per method, accuracies in percent, means with least and greatest.

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
    """Accuracy over cumulated MACs: a panel per level, a line per method; dashed, the budget.

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
    found: dict[tuple[str, str], list[pd.Series]] = {}
    for level, method, _, rows in each_run(methods, levels):
        reached = rows.set_index("macs")["accuracy"]
        found.setdefault((level, method), []).append(reached[~reached.index.duplicated(keep="last")])
    scale, text = axis(
        "total_macs", max([macs, *(float(one.index[-1]) for seeds in found.values() for one in seeds)])
    )
    for (level, method), seeds in found.items():
        costs = np.unique(np.concatenate([one.index for one in seeds]))
        low, high = max(one.index[0] for one in seeds), min(one.index[-1] for one in seeds)
        costs = costs[(costs >= low) & (costs <= high)]
        both = pd.concat([one.reindex(costs, method="ffill") for one in seeds], axis=1)
        style = {**look(list(methods).index(method)), "marker": ""}
        axes = panels[level]
        axes.plot(
            costs / scale, 100 * both.mean(axis=1), **style, linewidth=1.3, drawstyle="steps-post", label=method
        )
        if len(seeds) > 1:
            band = {"step": "post", "color": style["color"], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(costs / scale, 100 * both.min(axis=1), 100 * both.max(axis=1), **band)
    for level, axes in panels.items():
        axes.axvline(macs / scale, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_title(level, fontsize=9)
        label(axes, text, "accuracy (%)")
        axes.set_xlim(left=0)
    legend(figure)
    return figure


def _subnets(method: str, runs: Sequence[Run]) -> list[str]:
    """The subnets that all runs of a method have evaluated, by ascending MACs."""
    found = []
    for run in runs:
        table = run.subnets("val").sort_values("macs", kind="stable")
        if table.empty:
            raise DataError(
                f"{run.folder}: has no subnets-val.csv, as it has not ended; say with --metric what to compare"
            )
        found.append(list(table["subnet"]))
    if any(names != found[0] for names in found):
        raise DataError(f"{method}: its runs evaluated different subnets; say with --metric which to compare")
    return found[0]


def _total(run: Run) -> int:
    """What all clients of a run have spent, in MACs."""
    macs = run.clients["macs"]
    if macs.isna().all():
        raise DataError(f"{run.folder}: its records count no MACs; train it again with the present version")
    return int(macs.sum())
