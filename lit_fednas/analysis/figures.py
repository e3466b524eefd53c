"""Figures of searches: Pareto fronts, several of them compared, and how a search went on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.runs import SearchResult
from lit_fednas.analysis.style import GREY, draw_line, label, legend, look, new_figure
from lit_fednas.analysis.tables import progress
from lit_fednas.formatting import axis
from lit_fednas.records import ALL_TIERS


def pareto_figure(search: SearchResult) -> Figure:
    """Draws all evaluated architectures, each tier's front and budget, and the best of each tier.

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
        bounds = reached.min(), reached.max()
        draw_line(axes, reached.columns / scale, reached.mean(), bounds, place, name, drawstyle="steps-post")
    legend(figure)
    return figure


def progress_figure(searches: Mapping[str, Sequence[SearchResult]], tier: str) -> Figure:
    """Draws hypervolume and best accuracy of a tier against evaluations: mean, and range over seeds.

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
            draw_line(axes, mean.index, mean, (low, high), place, name, drawstyle="steps-post")
        words = "hypervolume" if column == "hypervolume" else "best validation accuracy"
        label(axes, f"evaluations in {tier}", words)
    legend(figure)
    return figure


def _front(search: SearchResult, tier: str) -> pd.Series:
    """Returns the accuracies of a front by ascending cost."""
    front = search.front[search.front["tier"] == tier]
    return front.set_index(search.cost)["accuracy"].sort_index()


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
    """Draws a tier's front as stairs: what is reached within a cost."""
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
