"""Charts that plotly draws in the reader's browser.

Their colours are variables of the page, which has a light and a dark set of them: a name looks the same in all charts
of a page, and on a light one as in matplotlib's figures.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from lit_fednas.analysis.report.blocks import Chart, Entry
from lit_fednas.analysis.style import LINES, PALETTE

GREY = "var(--grey)"
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = ("circle", "square", "diamond", "cross")
_FEW = 8  # values of x that all have a tick
_LINE = 19  # pixels of a line of text
_CELL = 22  # pixels of a client and class in a dot plot
_CLIENTS_SHOWN = 200


@dataclass(frozen=True)
class Mark:
    """A point that can be read by hovering."""

    x: float
    y: float
    tip: str


@dataclass(frozen=True)
class Event:
    """Something that happened at one x of a line chart: its label, what it says on hovering, and its colour."""

    x: float
    label: str
    tip: str
    index: int


def plain(text: object) -> str:
    """Returns an escaped text for plotly, which reads some HTML in names and texts.

    Example:
        >>> plain("<b>")
        '&lt;b&gt;'
    """
    return html.escape(str(text), quote=False).replace("\n", "<br>")


def colour(index: int) -> str:
    """Returns the colour of the n-th series."""
    return f"var(--series-{index % len(PALETTE)})"


def dash(index: int) -> str:
    """Returns the dashes of the n-th series, which differ where the colours begin anew."""
    return _DASHES[LINES[_turn(index) % len(LINES)]]


def line_chart(
    title: str,
    lines: Mapping[str, pd.Series] | pd.DataFrame,
    x_label: str,
    y_label: str,
    *,
    names: Sequence[str] = (),
    zero: bool = False,
    band: tuple[pd.Series, pd.Series] | None = None,
    wide: str = "",
    events: Sequence[Event] = (),
) -> Chart:
    """Returns lines over the same x; hovering reads all of them at one x.

    Args:
        title: Above the chart.
        lines: Values by name, each by ascending x, which is its index; missing values are left out.
        x_label: Name of the x axis.
        y_label: Name of the y axis, with its unit.
        names: All names of this kind on the page: a line looks as its name's place among them says; others follow.
        zero: Whether the y axis begins at 0.
        band: Lower and upper bounds of the first line.
        wide: The line that is drawn wide and grey behind the others.
        events: By ascending x; a label is left out where it would touch the one before.
    """
    figure = go.Figure()
    legend: list[Entry] = []
    points = {str(name): line.dropna() for name, line in lines.items()}
    known = dict.fromkeys(name for name in (*map(str, names), *points) if name != wide)
    looks = {name: index for index, name in enumerate(known)}
    points = {name: line for name, line in points.items() if len(line)}
    for name, line in points.items():
        traces = [len(figure.data)]
        style: dict[str, Any] = {"color": GREY, "width": 6}
        if name != wide:
            style = {"color": colour(looks[name]), "width": 2, "dash": dash(looks[name])}
        if band is not None and not legend:
            _add_band(figure, *band, style["color"])
            traces.append(len(figure.data))
        figure.add_scatter(
            x=line.index.tolist(),
            y=line.tolist(),
            name=plain(name),
            mode="lines" if len(line) > 1 else "markers",
            line=style,
            opacity=0.5 if name == wide else 1,
            zorder=-1 if name == wide else 0,
            hovertemplate="%{y:.4~g}",
        )
        legend.append(Entry(name, traces, looks.get(name)))
    xs = sorted({x for line in points.values() for x in line.index.tolist()})
    if events and points:
        _add_events(figure, events, xs, max(line.max() for line in points.values()))
    figure.update_layout(hovermode="x unified", showlegend=False)
    ticks = {"tickvals": xs} if len(xs) <= _FEW else {}  # else there would be halves of rounds
    figure.update_xaxes(title=plain(x_label), unifiedhovertitle_text=f"{plain(x_label)} %{{x}}", **ticks)
    figure.update_yaxes(title=plain(y_label), rangemode="tozero" if zero else "normal")
    height = max(280, 60 + _LINE * len(legend))  # the box on hovering has a line for each
    return Chart(title, _json(figure), height, legend=legend if len(legend) > 1 else ())


def front_chart(
    title: str,
    index: int,
    cloud: pd.Series,
    front: Sequence[Mark],
    best: Sequence[Mark],
    limits: Sequence[float],
    labels: tuple[str, str],
) -> Chart:
    """Returns a Pareto front as stairs through marks, before a cloud of all points.

    Args:
        title: Above the chart.
        index: Which colour.
        cloud: y of all points by their x.
        front: The front's points by ascending x.
        best: Points that are drawn as stars.
        limits: Bounds of x, drawn as dashed lines.
        labels: Names of the axes.
    """
    xs, ys = cloud.index.tolist(), cloud.tolist()
    silent: dict[str, Any] = {"hoverinfo": "skip"}
    figure = go.Figure()
    figure.add_scatter(x=xs, y=ys, mode="markers", marker={"color": GREY, "size": 4, "opacity": 0.5}, **silent)
    for limit in limits:
        line = {"color": colour(index), "width": 1.3, "dash": "dash"}
        figure.add_scatter(x=[limit] * 2, y=[min(ys), max(ys)], mode="lines", line=line, **silent)
    line = {"color": colour(index), "shape": "hv", "dash": dash(index)}
    marker = {"size": 8, "symbol": _SYMBOLS[_turn(index) % len(_SYMBOLS)]}
    figure.add_scatter(**_points(front), mode="lines+markers", line=line, marker=marker, hoverinfo="text")
    star = {"color": colour(index), "symbol": "star", "size": 15, "line": {"color": "var(--card)", "width": 1}}
    figure.add_scatter(**_points(best), mode="markers", marker=star, hoverinfo="text")
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_xaxes(title=plain(labels[0]), **_cost_axis([*xs, *limits]))
    figure.update_yaxes(title=plain(labels[1]))
    return Chart(title, _json(figure))


def dot_plot(partition: pd.DataFrame) -> Chart:
    """Returns a dot per client and class, its area the number of examples (SuperFed, Fig. 9).

    Args:
        partition: ``client``, ``size``, and the count of each class; wide plots scroll in their box. Of more than 200
            clients it shows 200 that are evenly spaced.
    """
    everyone = len(partition)
    if everyone > _CLIENTS_SHOWN:
        partition = partition.iloc[[place * everyone // _CLIENTS_SHOWN for place in range(_CLIENTS_SHOWN)]]
    classes, clients = list(partition.columns[2:]), list(partition["client"])
    most = max(1, int(partition[classes].to_numpy().max()))
    dots = [
        (column, row, int(count), f"client {client}, {name}: {int(count):,}")
        for row, name in enumerate(classes)
        for column, (client, count) in enumerate(zip(clients, partition[name], strict=True))
        if count
    ]
    columns, rows, counts, tips = zip(*dots, strict=True) if dots else ((), (), (), ())
    radius = 0.47 * _CELL  # the largest dot fills its cell, and a single example stays visible
    sizes = {"size": counts, "sizemode": "area", "sizeref": most / (2 * radius**2), "sizemin": 1}
    marker = {**sizes, "color": colour(0), "opacity": 1, "line": {"width": 0}}
    figure = go.Figure()
    texts = {"hovertext": [plain(tip) for tip in tips], "hoverinfo": "text"}
    figure.add_scatter(x=columns, y=rows, mode="markers", marker=marker, **texts)
    shown = range(0, len(clients), 1 if len(clients) <= 20 else 5)
    names = [name if len(name) <= 16 else name[:15] + "…" for name in classes]
    left, width, height = 24 + 8 * max(map(len, names)), _CELL * len(clients), _CELL * len(classes)
    figure.update_layout(
        hovermode="closest", showlegend=False, margin={"l": left, "r": 10, "t": 10, "b": 40}, dragmode=False
    )
    ticks = {"tickvals": list(shown), "ticktext": [plain(clients[index]) for index in shown], "tickangle": 0}
    figure.update_xaxes(title="client", range=[-0.5, len(clients) - 0.5], automargin=False, showgrid=False, **ticks)
    ticks = {"tickvals": list(range(len(names))), "ticktext": [plain(name) for name in names]}
    figure.update_yaxes(range=[len(names) - 0.5, -0.5], automargin=False, **ticks)
    per = "client and class" if len(classes) > 1 else "client"
    title = f"Examples per {per}; the largest dot is {most:,}"
    if everyone > len(clients):
        title += f"; {len(clients)} of {everyone:,} clients, evenly spaced"
    return Chart(title, _json(figure), height + 50, left + width + 10)


def tree_chart(
    title: str, nodes: Sequence[Mark], parents: Sequence[int | None], words: Sequence[tuple[str, str]]
) -> Chart:
    """Returns a tree: a line per node, in their order from above; across, a cost on a logarithmic axis.

    Args:
        title: Above the chart.
        nodes: Each node's cost, its number (``y``), and what it says on hovering.
        parents: Each node's parent by its index in the order; ``None`` for the root.
        words: Of each node, what is to its left and to its right.
    """
    figure = go.Figure()
    xs, places = [node.x for node in nodes], list(range(len(nodes)))
    for index, parent in enumerate(parents):
        if parent is not None:
            path = {"x": [xs[parent], xs[parent], xs[index]], "y": [parent, index, index]}
            line = {"color": GREY, "width": 1.5}
            figure.add_scatter(**path, mode="lines", line=line, hoverinfo="skip")
    rings = {"color": [colour(int(node.y)) for node in nodes], "width": 3}
    marker = {"size": 20, "color": "var(--card)", "line": rings, "opacity": 1}
    numbers = {"text": [f"{node.y:g}" for node in nodes], "textfont_size": 11}
    tips = [plain(node.tip) for node in nodes]
    numbers |= {"hovertext": tips, "hoverinfo": "text", "cliponaxis": False}
    figure.add_scatter(x=xs, y=places, mode="markers+text", marker=marker, **numbers)
    for index, (_, right) in enumerate(words):
        text = {"text": plain(right), "xref": "paper", "x": 1, "xshift": 14, "xanchor": "left", "align": "left"}
        figure.add_annotation(**text, y=index, showarrow=False, font_size=11)
    figure.update_layout(hovermode="closest", showlegend=False, margin={"r": 190})
    reach = max((max(xs) / min(xs)) ** 0.15, 1.5)
    ends = [math.log10(min(xs) / reach), math.log10(max(xs) * reach)]
    figure.update_xaxes(title="MACs per example", type="log", range=ends, dtick="D2" if ends[1] - ends[0] < 1 else 1)
    figure.update_xaxes(tickformat=".3~s")
    left = {"tickvals": places, "ticktext": [plain(word) for word, _ in words]}
    figure.update_yaxes(range=[len(nodes) - 0.5, -0.5], showgrid=False, **left)
    return Chart(title, _json(figure), 70 + 42 * len(nodes))


def _cost_axis(values: Sequence[float]) -> dict[str, Any]:
    """Returns an axis for costs: logarithmic beyond a factor of 20."""
    if not values or min(values) <= 0 or max(values) <= 20 * min(values):
        return {}
    return {"type": "log", "dtick": "D2" if max(values) < 1000 * min(values) else 1}


def _turn(index: int) -> int:
    return index // len(PALETTE)


def _add_band(figure: go.Figure, low: pd.Series, high: pd.Series, color: str) -> None:
    bounds = {"x": [*low.index, *high.index[::-1]], "y": [*high, *low[::-1]]}
    silent = {"mode": "lines", "hoverinfo": "skip", "line_width": 0}
    figure.add_scatter(**bounds, **silent, fill="toself", fillcolor=color, opacity=0.2)


def _points(marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "x": [mark.x for mark in marks],
        "y": [mark.y for mark in marks],
        "hovertext": [plain(mark.tip) for mark in marks],
    }


def _add_events(figure: go.Figure, events: Sequence[Event], xs: Sequence[float], height: float) -> None:
    """Draws upright lines with labels above, which hovering reads along with the lines."""
    every = [*xs, *(event.x for event in events)]
    room, end = 0.06 * (max(every) - min(every)), -math.inf
    for event in events:
        figure.add_vline(event.x, line={"color": colour(event.index), "width": 1.2, "dash": "dash"})
        if event.x > end:
            above = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "font_size": 11}
            figure.add_annotation(x=event.x, text=plain(event.label), **above)
            end = event.x + room
    figure.add_scatter(
        x=[event.x for event in events],
        y=[float(height)] * len(events),
        text=[plain(event.tip) for event in events],
        mode="markers",
        marker={"color": GREY, "opacity": 0},
        hovertemplate="%{text}<extra></extra>",
    )


def _json(figure: go.Figure) -> str:
    figure.layout.template = None  # the page has its own, a light and a dark one
    text = figure.to_json()
    assert text is not None
    return text
