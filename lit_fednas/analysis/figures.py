"""Figures of runs and searches: metrics over rounds, accuracy against cost, Pareto fronts, the clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.runs import Run, SearchResult
from lit_fednas.analysis.style import GREY, PALETTE, label, legend, look, new_figure
from lit_fednas.analysis.tables import (
    client_table,
    independent_costs,
    interval,
    progress,
    run_subnets,
    subnet_rounds,
    total_costs,
)
from lit_fednas.formatting import axis
from lit_fednas.records import ALL_TIERS


def pareto_figure(search: SearchResult) -> Figure:
    """All evaluated architectures, each tier's front and budget, and the best of each tier.

    Args:
        search: A search's tables; one without tiers' fronts yet shows its evaluations.
    """
    figure = new_figure()
    axes = figure.axes[0]
    scale = _cost_axis(axes, search.cost, search.evaluations[search.cost])
    points = search.evaluations
    axes.scatter(points[search.cost] / scale, points["accuracy"], s=6, color=GREY, alpha=0.5, linewidths=0)
    for place, tier in enumerate(search.tier_names):
        _draw_tier(axes, search, tier, place, scale)
    if not search.tier_names:
        _draw_front(axes, search, ALL_TIERS, 0, scale)
    legend(figure)
    return figure


def fronts_figure(searches: Mapping[str, Sequence[SearchResult]], tier: str = ALL_TIERS) -> Figure:
    """Fronts compared: per method the mean accuracy that is reached within a cost, and its range over seeds.

    Args:
        searches: Searches of several seeds, by method; all with the same objective cost.
        tier: Whose fronts.
    """
    figure = new_figure()
    axes = figure.axes[0]
    fronts = {name: [_front(one, tier) for one in group] for name, group in searches.items()}
    costs = np.unique(np.concatenate([front.index for group in fronts.values() for front in group] or [[]]))
    scale = _cost_axis(axes, next((one.cost for group in searches.values() for one in group), "macs"), costs)
    for place, (name, group) in enumerate(fronts.items()):
        reached = pd.DataFrame([front.reindex(costs, method="ffill") for front in group]).dropna(axis=1)
        style = {**look(place), "marker": ""}
        axes.plot(reached.columns / scale, reached.mean(), drawstyle="steps-post", label=name, **style)
        if len(reached) > 1:
            _band(axes, reached.min(), reached.max(), scale, place)
    legend(figure)
    return figure


def progress_figure(searches: Mapping[str, Sequence[SearchResult]], tier: str) -> Figure:
    """Hypervolume and best accuracy of a tier against evaluations: mean, and range over seeds.

    Args:
        searches: Searches of several seeds, by method.
        tier: The tier.
    """
    figure = new_figure(2)
    table = progress(searches, tier)
    for axes, column in zip(figure.axes, ("hypervolume", "best_accuracy"), strict=True):
        for place, name in enumerate(searches):
            by_count = table[table["method"] == name].groupby("evaluations")[column]
            low, mean, high = by_count.min(), by_count.mean(), by_count.max()
            axes.plot(mean.index, mean, **{**look(place), "marker": ""}, drawstyle="steps-post", label=name)
            if (high > low).any():
                _band(axes, low, high, 1.0, place)
        words = "hypervolume" if column == "hypervolume" else "best validation accuracy"
        label(axes, f"evaluations in {tier}", words)
    legend(figure)
    return figure


def _front(search: SearchResult, tier: str) -> pd.Series:
    """Accuracy of a front by ascending cost."""
    front = search.front[search.front["tier"] == tier]
    return front.set_index(search.cost)["accuracy"].sort_index()


def _band(axes: Axes, low: pd.Series, high: pd.Series, scale: float, place: int) -> None:
    """The range between two series over the same costs or counts."""
    style = {"color": look(place)["color"], "alpha": 0.18, "linewidth": 0}
    axes.fill_between(low.index / scale, low, high, step="post", **style)


def _draw_tier(axes: Axes, search: SearchResult, tier: str, place: int, scale: float) -> None:
    _draw_front(axes, search, tier, place, scale)
    colour = look(place)["color"]
    _, budget = search.limits(tier)
    if budget is not None:
        axes.axvline(budget / scale, color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
    for _, best in search.tiers[search.tiers["tier"] == tier].iterrows():
        x, y = [best[search.cost] / scale], [best["val_accuracy"]]
        axes.plot(x, y, marker="*", markersize=11, color=colour, markeredgecolor="white", zorder=4)


def _draw_front(axes: Axes, search: SearchResult, tier: str, place: int, scale: float) -> None:
    """Front of a tier as stairs: what is reached within a cost."""
    front = _front(search, tier)
    if len(front):
        name = "all" if tier == ALL_TIERS else tier
        style = {**look(place), "drawstyle": "steps-post", "marker": "o", "markersize": 3.5, "linewidth": 1.3}
        axes.plot(front.index / scale, front, **style, label=name, zorder=3 - place / 100)  # tiers may be nested


def _cost_axis(axes: Axes, cost: str, values: Iterable[float]) -> float:
    """Labels the axes of accuracy over a cost, logarithmic beyond a factor of 20; what to divide costs by."""
    known = pd.Series(list(values), dtype=float).dropna()
    largest = float(known.max()) if len(known) else 1.0
    scale, text = axis(cost, largest)
    label(axes, text, "validation accuracy")
    if len(known) and known.min() > 0 and largest / known.min() > 20:
        axes.set_xscale("log")
    return scale


def rounds_figure(runs: Sequence[Run], metric: str = "accuracy") -> Figure:
    """A validation metric of every subnet over the rounds: mean over runs, with its 95 % interval from two on.

    Args:
        runs: Runs that differ in their seeds.
        metric: ``accuracy`` or ``loss``.
    """
    figure = new_figure()
    axes = figure.axes[0]
    table = interval(subnet_rounds(runs, metric), ["subnet", "round"], metric)
    for place, (name, lines) in enumerate(table.groupby("subnet", sort=False)):
        _line(axes, lines["round"], lines, place, str(name))
    label(axes, "round", f"validation {metric}")
    if metric == "accuracy":
        _only_shares(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure)
    return figure


def subnets_figure(groups: Mapping[str, Sequence[Run]], split: str = "val") -> Figure:
    """Accuracy of the evaluated subnets against their MACs: mean over each group's runs, with 95 % interval.

    Args:
        groups: Runs that differ in their seeds, by name.
        split: ``val`` or ``test``.
    """
    figure = new_figure()
    axes = figure.axes[0]
    rows = run_subnets(groups, split)
    scale, text = axis("macs", float(rows["macs"].max()) if len(rows) else 1.0)
    table = interval(rows, ["group", "macs"], "accuracy") if len(rows) else rows
    for place, (name, lines) in enumerate(table.groupby("group", sort=False)):
        lines = lines.sort_values("macs")
        _line(axes, lines["macs"] / scale, lines, place, str(name), marked=True)
    label(axes, text, "validation accuracy" if split == "val" else "test accuracy")
    _only_shares(axes)
    legend(figure)
    return figure


def costs_figure(run: Run) -> Figure:
    """MACs and bytes spent over the rounds; dashed, what training the evaluated subnets one by one would take."""
    figure = new_figure(2)
    spent = total_costs(run)
    alone = independent_costs(run.ledger).iloc[-1] if run.ledger else None
    for axes, name in zip(figure.axes, ("macs", "bytes"), strict=True):
        column = f"total_{name}"
        most = max([float(spent[column].max()), *([float(alone[name])] if alone is not None else [])])
        scale, text = axis(column, most)
        axes.plot(spent["round"], spent[column] / scale, color=PALETTE[0], label="this run")
        if alone is not None and len(spent):
            ends = [spent["round"].iloc[-1]], [alone[name] / scale]
            axes.plot(*ends, "D", color=PALETTE[1], markersize=6, label="subnets one by one", clip_on=False)
        label(axes, "round", text)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure)
    return figure


def clients_figure(run: Run) -> Figure:
    """Distribution of each client's loss during local training, over the rounds it took part in.

    Up to 40 clients have a box each; of more, one box shows the distribution of their means.
    """
    figure = new_figure()
    axes = figure.axes[0]
    losses = {str(client): rows["loss"].dropna() for client, rows in run.clients.groupby("client")}
    if len(losses) > 40:
        losses = {f"means of {len(losses)}": client_table(run)["loss"].dropna()}
    boxes = axes.boxplot(
        list(losses.values()),
        patch_artist=True,
        medianprops={"color": "black"},
        flierprops={"markersize": 3},
    )
    for box in boxes["boxes"]:
        box.set(facecolor=PALETTE[5], linewidth=0.8)
    shown = range(0, len(losses), 1 + len(losses) // 12)
    axes.set_xticks([1 + place for place in shown], [list(losses)[place] for place in shown])
    label(axes, "client", "loss in local training")
    return figure


def _line(axes: Axes, x: pd.Series, table: pd.DataFrame, place: int, name: str, marked: bool = False) -> None:
    """A mean, and its interval where there is one."""
    style = look(place) if marked else {**look(place), "marker": ""}
    axes.plot(x, table["mean"], **style, markersize=4, label=name)
    if table["low"].notna().any():
        axes.fill_between(x, table["low"], table["high"], color=style["color"], alpha=0.18, linewidth=0)


def _only_shares(axes: Axes) -> None:
    """Cuts the y axis to 0..1: the intervals of few runs go beyond what an accuracy can be."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
