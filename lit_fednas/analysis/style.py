"""The look of all figures: readable at a width of 300 pixels, and by colour-blind readers."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from typing_extensions import override

from lit_fednas.formatting import GRID, PALETTE, figure_text

#: The summary of runs with several seeds, for ``DataFrame.agg``.
RANGE = ["mean", "min", "max"]
LINES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX"
#: The number of legend rows that fit into a figure, and the inches that it grows by for each additional row.
_FREE_ROWS, _ROW_HEIGHT = 2, 0.16


def look(index: int) -> dict[str, Any]:
    """Returns colour, line style and marker of the n-th series; the line style changes when colours repeat."""
    turn, index = divmod(index, len(PALETTE))
    return {"color": PALETTE[index], "linestyle": LINES[turn % len(LINES)], "marker": _MARKERS[index]}


def new_figure(panels: int = 1, in_row: int | None = None) -> Figure:
    """Returns a figure of panels of 3.6 x 3 inches, at most ``in_row`` (by default all) side by side."""
    columns = min(panels, in_row or panels)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(3.6 * columns, 3.0 * rows), dpi=200, layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).flat[panels:]:
        axes.remove()
    for axes in figure.axes:
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_line(axes: Axes, line: pd.DataFrame, index: int, name: str | None = None, **style: Any) -> None:
    """Draws ``mean`` over the ascending index, and a band from ``min`` to ``max`` if they differ."""
    style = {**look(index), "marker": "" if len(line) > 1 else "o", "linewidth": 1.3, **style}
    axes.plot(line.index, line["mean"], **style, label=None if name is None else figure_text(name))
    if (line["max"] > line["min"]).any():
        band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
        if style.get("drawstyle") == "steps-post":
            band["step"] = "post"
        axes.fill_between(line.index, line["min"], line["max"], **band)


def label(axes: Axes, x: str, y: str) -> None:
    """Labels both axes."""
    axes.set_xlabel(figure_text(x, 100), fontsize=9)
    axes.set_ylabel(figure_text(y, 100), fontsize=9)


class _Ticks(LogLocator):
    """Ticks at 1, 2 and 5 within a factor of 500, otherwise at powers of ten, so that numbers do not overlap."""

    @override
    def tick_values(self, vmin: float, vmax: float) -> Any:
        self.set_params(subs=(1, 2, 5) if vmax < 500 * vmin else (1,), numticks=6)
        return super().tick_values(vmin, vmax)


def log_axis(axes: Axes) -> None:
    """Makes the x axis logarithmic, with plain numbers at its ticks: 0.5, 1, 2."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(_Ticks())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def legend(figure: Figure) -> None:
    """Adds one legend of all panels below them, as wide as fits and as high as needed."""
    pairs = (pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True))
    entries = {text: handle for handle, text in pairs}
    if len(entries) < 2:
        return
    style = {"fontsize": 8, "frameon": False, "handlelength": 2.2, "columnspacing": 1.2}
    in_row = len({axes.get_position().x0 for axes in figure.axes})
    for columns in range(3 * in_row, 0, -1):
        box = figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, **style)
        if columns == 1 or box.get_window_extent().width < figure.bbox.width:
            break
        box.remove()
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + _ROW_HEIGHT * max(0, rows - _FREE_ROWS))
