"""Charts of runs and searches, drawn by matplotlib; in a page they are SVG that shows values on hovering.

The page defines colours as variables, with a light and a dark set. An artist's hovering text is its ``gid``, which
matplotlib writes as the id of a group.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.runs import SearchResult
from lit_fednas.analysis.style import RANGE, draw_line, label, legend, log_axis, look, new_figure
from lit_fednas.analysis.tables import cost_words
from lit_fednas.formatting import GREY, GRID, PALETTE, axis, figure_text, metric_text, scale_of
from lit_fednas.records import ALL_TIERS

#: Searches with several seeds, by method; all have the same cost and metric.
Searches: TypeAlias = Mapping[str, Sequence[SearchResult]]
_MAX_TICKS = 8  # maximum number of x values that each get a tick
_MAX_TIPS = 60  # maximum number of hovering texts over the lines of a chart
_MAX_DOTS = 1_000  # maximum number of dots that an SVG holds one by one; more become an image
_MAX_LAYERS = 4  # maximum number of sizes of overlapping marks
_VARIABLES = {colour: f"var(--series-{index})" for index, colour in enumerate(PALETTE)}
_VARIABLES |= {"#000000": "currentColor", GREY: "var(--grey)", GRID: "var(--line)", "#ffffff": "var(--card)"}
_IDS = re.compile(r' id="[\w.]+_\d+"')
_TIP = re.compile(r"<g id=([\"'])(.*?)\1>", re.DOTALL)
_DIGITS = re.compile(r"(?<=\d\.\d)\d+(?=[^<>]*>)")
_FONT = re.compile(r"font: ([\d.]+px) [^;\"]*")
_FAMILY = re.compile(r" font-family: [^;\"]*;?|^ +", re.MULTILINE)  # includes indentation


@dataclass(frozen=True)
class Chart:
    """A figure in a page, with its title."""

    title: str
    figure: Figure

    def __html__(self) -> Markup:
        wide = Markup(' class="row"') if self.figure.get_figwidth() > 5 else ""
        box = "<figure{}>\n<figcaption>{}</figcaption>\n{}\n</figure>"
        return Markup(box).format(wide, self.title, self._svg())

    def _svg(self) -> Markup:
        file = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self.title}):
            self.figure.savefig(file, format="svg", transparent=True)
        text = _TIP.sub(r'<g class="tip"><title>\2</title>', _IDS.sub("", file.getvalue()))
        text = _FAMILY.sub("", _DIGITS.sub("", _FONT.sub(r"font-size: \1", text)))
        for colour, variable in _VARIABLES.items():
            text = text.replace(f": {colour}", f": {variable}")
        _, _, drawing = text.partition("</defs>")  # drops the header, which styles the whole page
        width, height = self.figure.get_size_inches() * 72
        head = '<svg viewBox="0 0 {:g} {:g}" style="min-width:{:.0f}px" role="img" aria-label="{}">'
        return Markup(head).format(width, height, width, self._words()) + Markup(drawing)

    def _words(self) -> str:
        """Returns a description for screen readers: the axes, and the first and last value of each line."""
        panels = []
        for axes in self.figure.axes:
            lines = [(str(line.get_label()), pd.Series(line.get_ydata()).dropna()) for line in axes.get_lines()]
            lines = [(name, ys) for name, ys in lines if len(ys) and not name.startswith("_")]
            ends = [f"{name} from {ys.iloc[0]:.4g} to {ys.iloc[-1]:.4g}" for name, ys in lines]
            names = " over ".join(filter(None, [axes.get_ylabel(), axes.get_xlabel()]))
            panels.append(": ".join(filter(None, [axes.get_title(), names, ", ".join(ends)])))
        return "; ".join([self.title, *panels])


@dataclass(frozen=True)
class Charts:
    """Charts and other small blocks, side by side."""

    charts: Sequence[Any]

    def __html__(self) -> Markup:
        return Markup('<div class="charts">\n{}\n</div>').format(Markup("\n").join(self.charts))


def line_chart(
    title: str,
    lines: Mapping[str, pd.Series | pd.DataFrame] | pd.DataFrame,
    x_label: str,
    y_label: str,
    *,
    names: Sequence[str] = (),
    zero: bool = False,
) -> Chart:
    """Returns a chart of lines, which shows all values at one x on hovering.

    Args:
        title: The title above the chart.
        lines: The values of each line over the ascending index; a frame has ``mean``, ``min`` and ``max`` for a band.
        x_label: The name of the x axis.
        y_label: The name of the y axis with its unit; accuracies are shown in percent and need no unit.
        names: All names of this kind on the page, so that a line looks the same in all charts.
        zero: Whether the y axis begins at 0.
    """
    figure = new_figure()
    (axes,) = figure.axes
    scale, unit = scale_of(y_label)
    frames = {str(name): scale * _bounded(line).dropna() for name, line in lines.items()}
    styled_names = [*dict.fromkeys((*map(str, names), *frames))]
    tips: dict[float, list[str]] = {x: [] for x in sorted({x for line in frames.values() for x in line.index})}
    if len(tips) <= _MAX_TICKS:
        axes.set_xticks(list(tips))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # no halves of rounds
    for name, line in frames.items():
        if len(line):
            draw_line(axes, line, styled_names.index(name), name)
        for x, value in line["mean"].items():
            tips[x].append(f"{name}: {value:.1f}" if unit else f"{name}: {value:.4g}")
    if zero:
        axes.set_ylim(bottom=0)
    label(axes, x_label, f"{y_label}{unit}")
    say_columns(axes, {x: "\n".join([f"{x_label} {x:g}", *texts]) for x, texts in tips.items()})
    legend(figure)
    return Chart(title, figure)


def _bounded(line: pd.Series | pd.DataFrame) -> pd.DataFrame:
    return line if isinstance(line, pd.DataFrame) else pd.DataFrame(dict.fromkeys(RANGE, line.astype(float)))


def say(axes: Axes, x: float, y: float, text: str) -> None:
    """Adds a hovering text to a point."""
    axes.plot(x, y, "s", markersize=9, alpha=0, zorder=9, gid=text)


def say_columns(axes: Axes, texts: Mapping[float, str]) -> None:
    """Adds hovering texts to the columns around values of x, at most to 60 that are evenly spaced."""
    xs = sorted(texts)[:: math.ceil(len(texts) / _MAX_TIPS) or 1]
    limits = axes.get_xlim()
    borders = [limits[0], *((x + next_x) / 2 for x, next_x in pairwise(xs)), limits[1]]
    for x, (begin, end) in zip(xs, pairwise(borders), strict=False):
        axes.axvspan(begin, end, alpha=0, zorder=9, gid=texts[x])
    axes.set_xlim(limits)


def pareto_figure(search: SearchResult, tier: str | None = None, index: int = 0) -> Figure:
    """Draws all evaluated architectures, and each tier's front, limit and best network; one tier has no legend."""
    figure = new_figure()
    axes = figure.axes[0]
    points = search.evaluations
    scale = cost_axis(axes, search.cost, search.metric, points[search.cost])
    times, _ = scale_of(search.metric)
    dots: dict[str, Any] = {"s": 6, "alpha": 0.5, "linewidths": 0, "rasterized": len(points) > _MAX_DOTS}
    axes.scatter(points[search.cost] / scale, times * points[search.metric], color=GREY, **dots)
    fronts: list[set[tuple[float, float]]] = []
    for number, name in enumerate((search.tier_names or [ALL_TIERS]) if tier is None else [tier], index):
        front, (_, limit), style = front_of(search, name), search.limits(name), look(number)
        # a mark is larger for each earlier front that shares a point, so that all of them stay visible
        layer = min(sum(bool({*front.items()} & other) for other in fronts), _MAX_LAYERS)
        fronts.append({*front.items()})
        if len(front):  # stairs show the best metric within a cost
            wider = {"markersize": 3.5 + 3 * layer, "linewidth": 1.3 + 1.2 * layer, "alpha": 0.6 if layer else 1}
            steps = {**style, "drawstyle": "steps-post", "marker": "o", **wider, "zorder": 3 - layer / 100}
            text = figure_text("all" if name == ALL_TIERS else name)
            axes.plot(front.index / scale, times * front, **steps, label=text)
        if limit is not None:
            axes.axvline(limit / scale, color=style["color"], linewidth=0.9, linestyle=(0, (4, 3)))
        best = search.tiers[search.tiers["tier"] == name].set_index(search.cost)[f"val_{search.metric}"]
        star: dict[str, Any] = {"markersize": 10 + 6 * layer, "markeredgewidth": 0.4, "markeredgecolor": "white"}
        axes.plot(best.index / scale, times * best, "*", color=style["color"], zorder=4 - layer / 100, **star)
        _say_networks(axes, search, name, scale)
    if tier is None:
        legend(figure)
    return figure


def _say_networks(axes: Axes, search: SearchResult, tier: str, scale: float) -> None:
    """Adds hovering texts to a tier's front and to its best network."""
    times, _ = scale_of(search.metric)
    tables = {"": (search.front, search.metric), f"best of {tier}\n": (search.tiers, f"val_{search.metric}")}
    for first, (table, metric) in tables.items():
        for _, row in table[table["tier"] == tier].iterrows():
            rating, cost = metric_text(search.metric, row[metric], "%"), cost_words(search.cost, row[search.cost])
            text = f"{first}{search.metric} {rating}, {cost}\n{row['arch']}"
            say(axes, row[search.cost] / scale, times * row[metric], text)


def fronts_figure(searches: Searches, tier: str = ALL_TIERS) -> Figure:
    """Draws a tier's fronts: for each method, the mean of the best metric within a cost, and its range over seeds."""
    figure = new_figure()
    axes = figure.axes[0]
    fronts = {name: [front_of(search, tier) for search in group] for name, group in searches.items()}
    costs = sorted({cost for group in fronts.values() for front in group for cost in front.index})
    names = ((search.cost, search.metric) for group in searches.values() for search in group)
    cost, metric = next(names, ("macs", "accuracy"))
    scale = cost_axis(axes, cost, metric, costs)
    for index, (name, group) in enumerate(fronts.items()):
        draw_stairs(axes, scale_of(metric)[0] * stairs(group, costs), index, name, scale)
    legend(figure)
    return figure


def progress_figure(searches: Searches, tier: str) -> Figure:
    """Draws a tier's hypervolume and best metric over evaluations: mean and range where all seeds have values."""
    figure = new_figure(2)
    metric = next((search.metric for group in searches.values() for search in group), "accuracy")
    texts = {"hypervolume": "hypervolume", f"best_{metric}": f"best validation {metric}"}
    for axes, (column, text) in zip(figure.axes, texts.items(), strict=True):
        times, unit = scale_of(text)
        for index, (name, group) in enumerate(searches.items()):
            histories = [search.history[search.history["tier"] == tier] for search in group]
            curves = [rows.set_index("evaluations")[column] for rows in histories if len(rows)]
            draw_stairs(axes, times * stairs(curves), index, name)
        label(axes, f"evaluations in {tier}", f"{text}{unit}")
    legend(figure)
    return figure


def stairs(curves: Sequence[pd.Series], xs: Sequence[float] | None = None) -> pd.DataFrame:
    """Returns curves as columns over a common x, which begins with the last curve; values hold until the next one."""
    curves = [curve.groupby(level=0).last() for curve in curves]
    if xs is None:
        begins, ends = ([curve.index[0] for curve in curves], [curve.index[-1] for curve in curves])
        end = max(min(ends, default=0), max(begins, default=0))  # keeps one x, even if curves do not overlap
        xs = sorted({x for curve in curves for x in curve.index if x <= end})
    return pd.DataFrame({index: curve.reindex(xs, method="ffill") for index, curve in enumerate(curves)}).dropna()


def draw_stairs(axes: Axes, curves: pd.DataFrame, index: int, name: str | None = None, scale: float = 1.0) -> None:
    """Draws the mean and the range of :func:`stairs`."""
    line = curves.agg(RANGE, axis=1)
    draw_line(axes, line.set_index(line.index / scale), index, name, drawstyle="steps-post")


def front_of(search: SearchResult, tier: str) -> pd.Series:
    """Returns the metric of a tier's front by ascending cost."""
    front = search.front[search.front["tier"] == tier]
    return front.set_index(search.cost)[search.metric].sort_index()


def cost_axis(axes: Axes, cost: str, metric: str, values: Iterable[float]) -> float:
    """Labels the axes of a metric over a cost, logarithmic beyond a factor of 20; returns the divisor of costs."""
    costs = pd.Series(list(values), dtype=float).dropna()
    largest = float(costs.max()) if len(costs) else 1.0
    scale, text = axis(cost, largest)
    label(axes, text, f"validation {metric}{scale_of(metric)[1]}")
    if len(costs) and costs.min() > 0 and largest / costs.min() > 20:
        log_axis(axes)
    return scale
