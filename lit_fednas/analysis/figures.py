"""Figures of searches: Pareto fronts, several of them compared, and how a search went on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.runs import SearchResult
from lit_fednas.analysis.style import GREY, RANGE, draw_line, label, legend, log_axis, look, new_figure
from lit_fednas.analysis.tables import stairs
from lit_fednas.formatting import axis, figure_text
from lit_fednas.records import ALL_TIERS

#: Searches of several seeds, by method; all with the same objective cost and metric.
Searches = Mapping[str, Sequence[SearchResult]]
_LAYERS = 4  # of marks that are visible below each other


def pareto_figure(search: SearchResult) -> Figure:
    """Draws all evaluated architectures, and each tier's front, budget and best."""
    figure = new_figure()
    axes = figure.axes[0]
    points = search.evaluations
    scale = _cost_axis(axes, search.cost, search.metric, points[search.cost])
    axes.scatter(points[search.cost] / scale, points[search.metric], s=6, color=GREY, alpha=0.5, linewidths=0)
    drawn: list[set[tuple[float, float]]] = []
    for index, tier in enumerate(search.tier_names or [ALL_TIERS]):
        front = _front(search, tier)
        points = set(front.items())
        layer = sum(bool(points & other) for other in drawn)
        _draw_tier(axes, search, tier, index, scale, min(layer, _LAYERS))
        drawn.append(points)
    legend(figure)
    return figure


def fronts_figure(searches: Searches, tier: str = ALL_TIERS) -> Figure:
    """Draws a tier's fronts: per method the mean metric within a cost, and its range over seeds."""
    figure = new_figure()
    axes = figure.axes[0]
    fronts = {name: [_front(one, tier) for one in group] for name, group in searches.items()}
    costs = sorted({cost for group in fronts.values() for front in group for cost in front.index})
    names = ((one.cost, one.metric) for group in searches.values() for one in group)
    scale = _cost_axis(axes, *next(names, ("macs", "accuracy")), costs)
    for index, (name, group) in enumerate(fronts.items()):
        line = stairs(group, costs).agg(RANGE, axis=1)
        draw_line(axes, line.set_index(line.index / scale), index, name, drawstyle="steps-post")
    legend(figure)
    return figure


def progress_figure(searches: Searches, tier: str) -> Figure:
    """Returns hypervolume and best metric of a tier against evaluations: mean, and range over seeds.

    A search keeps what it has reached until its next generation. Lines run from where all searches of a method
    have their first generation to where the first of them ends: every mean is over the same searches.
    """
    figure = new_figure(2)
    metric = next((one.metric for group in searches.values() for one in group), "accuracy")
    texts = {"hypervolume": "hypervolume", f"best_{metric}": f"best validation {metric}"}
    for axes, (column, text) in zip(figure.axes, texts.items(), strict=True):
        for index, (name, group) in enumerate(searches.items()):
            histories = [one.history[one.history["tier"] == tier] for one in group]
            curves = [rows.set_index("evaluations")[column] for rows in histories if len(rows)]
            draw_line(axes, stairs(curves).agg(RANGE, axis=1), index, name, drawstyle="steps-post")
        label(axes, f"evaluations in {tier}", text)
    legend(figure)
    return figure


def _front(search: SearchResult, tier: str) -> pd.Series:
    """Returns the metric of a front by ascending cost."""
    front = search.front[search.front["tier"] == tier]
    return front.set_index(search.cost)[search.metric].sort_index()


def _draw_tier(axes: Axes, search: SearchResult, tier: str, index: int, scale: float, layer: int) -> None:
    """Draws a tier's front as stairs: what is reached within a cost; its budget, and its best architecture.

    Args:
        axes: The panel.
        search: The search.
        tier: The tier.
        index: Which look.
        scale: The costs' divisor.
        layer: How many tiers before it share points with it, as nested tiers do; it is drawn below them and larger.
    """
    front = _front(search, tier)
    colour = look(index)["color"]
    if len(front):
        name = "all" if tier == ALL_TIERS else tier
        size = {"markersize": 3.5 + 3 * layer, "linewidth": 1.3 + 1.2 * layer, "alpha": 0.6 if layer else 1}
        style = {**look(index), "drawstyle": "steps-post", "marker": "o", **size}
        axes.plot(front.index / scale, front, **style, label=figure_text(name), zorder=3 - layer / 100)
    _, budget = search.limits(tier)
    if budget is not None:
        axes.axvline(budget / scale, color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
    for _, best in search.tiers[search.tiers["tier"] == tier].iterrows():
        x, y = [best[search.cost] / scale], [best[f"val_{search.metric}"]]
        star: dict[str, Any] = {
            "marker": "*",
            "markersize": 10 + 6 * layer,
            "markeredgewidth": 0.4,
            "zorder": 4 - layer / 100,
        }
        axes.plot(x, y, color=colour, markeredgecolor="white", **star)


def _cost_axis(axes: Axes, cost: str, metric: str, values: Iterable[float]) -> float:
    """Labels the axes of a metric over a cost, logarithmic beyond a factor of 20; returns the costs' divisor."""
    known = pd.Series(list(values), dtype=float).dropna()
    largest = float(known.max()) if len(known) else 1.0
    scale, text = axis(cost, largest)
    label(axes, text, f"validation {metric}")
    if len(known) and known.min() > 0 and largest / known.min() > 20:
        log_axis(axes)
    return scale
