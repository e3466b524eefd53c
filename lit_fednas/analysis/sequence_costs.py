"""What short-term fine-tuning costs a client until a network is small enough (FedNAS, Fig. 6, Tables 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import number_within, percent, sequence_of, sequence_table
from lit_fednas.analysis.sequence_accuracies import sequence_accuracies
from lit_fednas.analysis.style import label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, spread, text_table

_COLUMNS = ("number", "reached", "up_mb", "down_mb", "client_macs", "accuracy", "tuned", "test_accuracy")
_ABOVE: dict[str, Any] = {"fontsize": 6.5, "ha": "center", "va": "bottom", "rotation": 90}
_MOST_PERCENT = 9  # times more from which on a factor is easier to read than percent


def cost_table(methods: Methods, shares: Sequence[float], finetune: str = "finetune") -> pd.DataFrame:
    """Each run at each share of the initial resource: its cost until then, and its accuracy.

    Args:
        methods: Runs that differ in their seeds, by method; each with a sequence.
        shares: Of the initial resource, above 0 and below 1.
        finetune: The name of a fine-tuning, which a run need not have.

    Returns:
        ``method``, ``run``, ``share``, ``number`` (of the first model within the share), ``reached`` (what it
        takes of the initial resource), ``up_mb``, ``down_mb`` and ``client_macs`` (of a client on the average, as
        in :func:`~lit_fednas.analysis.sequence.sequence_table`), ``accuracy`` (on the clients' validation data),
        ``test_accuracy`` (after fine-tuning) of model ``tuned``: this very model, or if it was not fine-tuned, the
        largest that was and is within this share and not within the next smaller one. NaN where a run has not got
        so far.

    Raises:
        DataError: A run has no ``sequence.json``, or a share is out of range.
    """
    wrong = [share for share in shares if not 0 < share < 1]
    if wrong:
        raise DataError(f"--shares: {wrong[0]} is out of range; give shares above 0 and below 1")
    descending = sorted(set(shares), reverse=True)
    rows = []
    for share, below in zip(descending, [*descending[1:], 0.0], strict=True):
        for method, runs in methods.items():
            for run in runs:
                found = _at(run, share, below, finetune)
                rows.append({"method": method, "run": run.name, "share": share, **found})
    return pd.DataFrame(rows, columns=["method", "run", "share", *_COLUMNS])


def cost_markdown(table: pd.DataFrame) -> str:
    """A :func:`cost_table` as FedNAS' Tables 3 and 4: a row per share and method, means with least and greatest.

    Behind each cost is the difference from the first method's. The means are over the seeds that have got so far;
    fine-tuned accuracies are left out unless all of these have them.
    """
    head = ["share", "method", "seeds", "accuracy (%)", "fine-tuned (%)"]
    head += ["uplink per client (MB)", "Δ", "MACs per client", "Δ"]
    first = table["method"].iloc[0]
    body = []
    for (share, method), every in table.groupby(["share", "method"], sort=False):
        rows = every.dropna(subset=["number"])
        seeds = str(len(rows)) if len(rows) == len(every) else f"{len(rows)} of {len(every)}"
        base = table[(table["share"] == share) & (table["method"] == first)]
        costs = []
        for name, unit in (("up_mb", _megabytes), ("client_macs", short)):
            costs += [_costs(rows[name], unit), change(_quotient(rows[name].mean(), base[name].mean()))]
        accuracies = [_accuracies(rows[name]) for name in ("accuracy", "test_accuracy")]
        body.append([percent(float(share)), str(method), seeds, *accuracies, *costs])
    return text_table(head, body, left=2, markdown=True)


def change(ratio: float) -> str:
    """A cost by another, as a difference in percent; as a factor, if it is ten times or more.

    Example:
        >>> change(0.21), change(2.0), change(19.7), change(1.0), change(float("nan"))
        ('-79%', '+100%', '×20', '0%', '–')
    """
    if np.isnan(ratio):
        return "–"
    percents = round(100 * (ratio - 1))
    if ratio >= 1 + _MOST_PERCENT:
        return times(ratio)
    return f"{percents:+d}%" if percents else "0%"


def times(ratio: float) -> str:
    """A factor in two or three digits.

    Example:
        >>> times(2.24), times(19.7), times(1234.4)
        ('×2.2', '×20', '×1234')
    """
    return f"×{ratio:.1f}" if ratio < 9.95 else f"×{ratio:.0f}"


def cost_figure(table: pd.DataFrame) -> Figure:
    """FedNAS' Fig. 6: a :func:`cost_table` as logarithmic bars, and how many times the first method's each is.

    A whisker goes from the cheapest to the dearest seed.
    """
    methods, shares = list(dict.fromkeys(table["method"])), list(dict.fromkeys(table["share"]))
    figure = new_figure(2)
    width = max(3.6, 0.9 + 0.2 * len(methods) * len(shares) + 0.25 * len(shares))
    figure.set_size_inches(2 * width, 3.2)
    panels = (("up_mb", "uplink per client (MB)"), ("client_macs", "MACs per client (forward passes)"))
    for axes, (name, text) in zip(figure.axes, panels, strict=True):
        _draw_bars(axes, table, name, methods, shares)
        label(axes, "share of the initial resource", text)
    legend(figure)
    return figure


def _at(run: Run, share: float, below: float, finetune: str) -> dict[str, float]:
    """The values of one run at one share; nothing if it has not got so far."""
    number = number_within(sequence_of(run), share)
    if number is None:
        return {}
    row = sequence_table(run).set_index("number").loc[number]
    tuned, test = _fine_tuned(run, number, share, below, finetune)
    found = {"number": number, "reached": row["share"], "tuned": tuned, "test_accuracy": test}
    return {**found, **{name: row[name] for name in ("up_mb", "down_mb", "client_macs", "accuracy")}}


def _fine_tuned(run: Run, number: int, share: float, below: float, finetune: str) -> tuple[float, float]:
    """Which model stands for a share after fine-tuning, and its test accuracy; NaN if there is none.

    Of a model that several tiers had trained it is the training that came out best on the validation data, as the
    best of a tier's candidates is chosen.
    """
    resources = sequence_table(run).set_index("number")["share"]
    rows = sequence_accuracies(run, finetune).dropna(subset=["test_after"])
    rows = rows.assign(resource=rows["number"].map(resources))
    own = rows[rows["number"] == number]
    if own.empty:
        own = rows[(rows["resource"] <= share) & (rows["resource"] > below)]
        own = own[own["resource"] == own["resource"].max()]
    if own.empty:
        return np.nan, np.nan
    best = own.sort_values("val_after", ascending=False, kind="stable").iloc[0]
    return float(best["number"]), float(best["test_after"])


def _quotient(cost: float, base: float) -> float:
    return cost / base if base else np.nan


def _accuracies(values: pd.Series) -> str:
    return "–" if values.empty or values.isna().any() else spread(list(100 * values))


def _costs(values: pd.Series, unit: Callable[[float], str]) -> str:
    """Mean, and the least and greatest where they differ."""
    if values.empty:
        return "–"
    mean = unit(values.mean())
    return mean if values.nunique() == 1 else f"{mean} ({unit(values.min())} to {unit(values.max())})"


def _megabytes(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def _draw_bars(
    axes: Axes, table: pd.DataFrame, name: str, methods: Sequence[str], shares: Sequence[float]
) -> None:
    wide = 0.8 / len(methods)
    costs = table.dropna(subset=[name])
    by_bar = costs[costs[name] > 0].groupby(["share", "method"])[name]
    low, mean, high = by_bar.min(), by_bar.mean(), by_bar.max()
    for place, method in enumerate(methods):
        bars = [(spot, share) for spot, share in enumerate(shares) if (share, method) in mean.index]
        xs = [spot + (place - (len(methods) - 1) / 2) * wide for spot, _ in bars]
        heights = [mean[share, method] for _, share in bars]
        axes.bar(xs, heights, 0.92 * wide, color=look(place)["color"], label=method)
        for x, (_, share) in zip(xs, bars, strict=True):
            bounds = [low[share, method], high[share, method]]
            if bounds[0] < bounds[1]:
                axes.plot([x, x], bounds, color="black", linewidth=0.8)
            if place and (share, methods[0]) in mean.index:
                text = times(mean[share, method] / mean[share, methods[0]])
                axes.annotate(text, (x, bounds[1]), (0, 2), textcoords="offset points", **_ABOVE)
    if len(mean):
        axes.set_yscale("log")
        reach = (high.max() / low.min()) ** 0.15  # for what stands above the bars
        axes.set_ylim(low.min() / 3, high.max() * 2 * reach)
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(shares)), [percent(share) for share in shares])
