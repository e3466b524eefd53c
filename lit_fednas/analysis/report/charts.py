"""Charts as inline SVG. An element with ``data-tip`` is read out on hover, focus or tap (``report.js``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lit_fednas.analysis.report.markup import Html, Part, join, tag
from lit_fednas.analysis.report.scales import Scale, spread

WIDTH, HEIGHT = 360, 240  # as wide as a phone, so that a text of 12 px is about that everywhere
LEFT, RIGHT, TOP, BOTTOM = 60, 340, 12, 198
_COLOURS = 7
_MOST_POINTS = 300


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        name: For the legend and the read-out.
        points: x and y, by ascending x.
        band: Lower and upper bound per point, if there is a band.
        wide: Whether it is drawn wide and grey, for others to stand before it.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    wide: bool = False


@dataclass(frozen=True)
class Mark:
    """A point that can be read out.

    Attributes:
        x: Across.
        y: Up.
        tip: Its read-out.
        best: Whether it is drawn as a star.
    """

    x: float
    y: float
    tip: str
    best: bool = False


@dataclass(frozen=True)
class Event:
    """What happened at one x of a line chart.

    Attributes:
        x: Across.
        label: Above its upright line, in three characters; left out where it would touch the one before.
        tip: Its read-out.
        place: Which colour.
    """

    x: float
    label: str
    tip: str
    place: int


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    zero: bool = False,
    events: Sequence[Event] = (),
) -> Html:
    """Lines over the same x; hovering reads all of them at one x.

    Args:
        title: Above the chart.
        series: The lines; of many points some are left out.
        x_label: Name of the x axis.
        y_label: Name of the y axis, with its unit.
        zero: Whether the y axis begins at 0.
        events: By ascending x.
    """
    series = [_thinned(one) for one in series]
    points = [point for one in series for point in one.points]
    heights = [y for _, y in points] + [y for one in series for bounds in one.band for y in bounds]
    across = spread([x for x, _ in points], LEFT, RIGHT, margin=0.02)
    up = spread([*heights, 0.0] if zero else heights, BOTTOM, TOP)
    looks = [look(place) + " wide" * one.wide for place, one in enumerate(series)]
    order = sorted(range(len(series)), key=lambda place: not series[place].wide)
    drawn = [_line(series[place], looks[place], across, up) for place in order]
    columns = _columns(series, across, x_label, events)
    inside = [frame(across, up, x_label, y_label), _events(events, across), drawn, columns]
    names = [(one.name, found) for one, found in zip(series, looks, strict=True)]
    return figure(title, drawing(title, inside), legend(names) if len(names) > 1 else None)


def front_chart(
    title: str,
    place: int,
    cloud: Sequence[tuple[float, float]],
    marks: Sequence[Mark],
    limits: Iterable[float],
    labels: tuple[str, str],
) -> Html:
    """A Pareto front as stairs through marks, before a cloud of all points.

    Args:
        title: Above the chart.
        place: Which colour.
        cloud: All points; they set the axes.
        marks: The front's points by ascending x, and the best.
        limits: Bounds of x, drawn as dashed lines.
        labels: Names of the axes.
    """
    limits = list(limits)
    across = spread([*(x for x, _ in cloud), *limits], LEFT, RIGHT, log=True)
    up = spread([y for _, y in cloud], BOTTOM, TOP)
    dots = {(round(across(x)), round(up(y))) for x, y in cloud}  # of those on one pixel, one
    corners = [(across(mark.x), up(mark.y)) for mark in marks if not mark.best]
    inside = [
        frame(across, up, *labels),
        tag("path", d="".join(f"M{x} {y}h0" for x, y in sorted(dots)), class_="cloud"),
        [tag("path", d=f"M{across(limit)} {TOP}V{BOTTOM}", class_="limit") for limit in limits],
        tag("path", d=_stairs(corners), class_="line"),
        [_mark(mark, across, up) for mark in marks],
    ]
    return figure(title, drawing(title, tag("g", inside, class_=look(place))))


def figure(title: str, *parts: Part) -> Html:
    """A drawing under its title."""
    return tag("figure", tag("figcaption", title), *parts)


def drawing(title: str, inside: Part, width: float = WIDTH, height: float = HEIGHT) -> Html:
    """The SVG element; arrow keys go through its read-outs."""
    return tag(
        "svg",
        inside,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}; arrow keys read the values out",
        tabindex=0,
    )


def legend(names: Iterable[tuple[str, str]]) -> Html:
    """Names beside a piece of their line; texts wrap as the page does."""
    swatch = "M1 6H23"
    return tag(
        "ul",
        [
            tag("li", tag("svg", tag("path", d=swatch, class_=f"line {look}"), viewBox="0 0 24 12"), name)
            for name, look in names
        ],
        class_="legend",
    )


def frame(across: Scale, up: Scale, x_label: str, y_label: str) -> Html:
    """Grid, ticks and the axes' names."""
    shown_x, shown_y = across.ticks, up.ticks
    return tag(
        "g",
        [tag("path", d=f"M{LEFT} {up(y)}H{RIGHT}", class_="grid") for y in shown_y],
        [tag("text", tick_text(y), x=LEFT - 6, y=up(y) + 4, class_="end") for y in shown_y],
        [tag("text", tick_text(x), x=across(x), y=BOTTOM + 16, class_="middle") for x in shown_x],
        tag("path", d=f"M{LEFT} {BOTTOM}H{RIGHT}", class_="axis"),
        tag("text", x_label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 8, class_="middle name"),
        tag("text", y_label, transform=f"translate(10 {(TOP + BOTTOM) / 2}) rotate(-90)", class_="middle name"),
        class_="frame",
    )


def tick_text(number: float) -> str:
    """A tick without superfluous digits.

    Example:
        >>> tick_text(0.70), tick_text(1500)
        ('0.7', '1,500')
    """
    return f"{number:,.0f}" if number == int(number) else f"{number:.4g}"


def look(place: int) -> str:
    """Classes of the n-th line: its colour, and dashes where the colours begin anew."""
    return f"s{place % _COLOURS} d{place // _COLOURS % 3}"


def _line(one: Series, classes: str, across: Scale, up: Scale) -> Html:
    path = "M" + "L".join(f"{across(x)} {up(y)}" for x, y in one.points)
    parts: list[Part] = [tag("path", d=path, class_="line")]
    if len(one.points) == 1:
        x, y = one.points[0]
        parts = [tag("circle", cx=across(x), cy=up(y), r=3, class_="dot")]
    if one.band:
        xs = [across(x) for x, _ in one.points]
        upper = [f"{x} {up(high)}" for x, (_, high) in zip(xs, one.band, strict=True)]
        lower = [f"{x} {up(low)}" for x, (low, _) in zip(xs, one.band, strict=True)]
        parts.insert(0, tag("path", d="M" + "L".join([*upper, *reversed(lower)]) + "Z", class_="band"))
    return tag("g", parts, class_=classes)


def _events(events: Sequence[Event], across: Scale) -> Html:
    """Upright lines with what stands above them."""
    drawn, end = [], float("-inf")
    for event in events:
        x = across(event.x)
        text = tag("text", event.label, x=x, y=TOP - 2, class_="middle") if x > end else None
        end = x + 22 if x > end else end
        line = tag("path", d=f"M{x} {TOP}V{BOTTOM}", class_="limit")
        drawn.append(tag("g", line, text, class_=f"{look(event.place)} event"))
    return join(drawn)


def _columns(series: Sequence[Series], across: Scale, x_label: str, events: Sequence[Event]) -> Html:
    """For every x an invisible column with its read-out."""
    values: dict[float, list[str]] = {}
    for one in series:
        for x, y in one.points:
            values.setdefault(x, []).append(f"{one.name}: {y:.4g}")
    for event in events:
        values.setdefault(event.x, []).append(event.tip)
    xs = sorted(values)
    places = [across(x) for x in xs]
    edges = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), RIGHT]
    columns = []
    for x, place, (start, end) in zip(xs, places, pairwise(edges), strict=True):
        hit = tag("rect", x=start, y=TOP, width=max(0.0, end - start), height=BOTTOM - TOP)
        guide = tag("path", d=f"M{place} {TOP}V{BOTTOM}")
        columns.append(tag("g", hit, guide, class_="column", data_tip="\n".join([f"{x_label} {x:g}", *values[x]])))
    return join(columns)


def _mark(mark: Mark, across: Scale, up: Scale) -> Html:
    x, y = across(mark.x), up(mark.y)
    shape = (
        tag("path", d=_star(x, y), class_="star") if mark.best else tag("circle", cx=x, cy=y, r=3.5, class_="dot")
    )
    return tag("g", tag("circle", cx=x, cy=y, r=9, class_="hit"), shape, class_="mark", data_tip=mark.tip)


def _star(x: float, y: float, radius: float = 8) -> str:
    corners = []
    for corner in range(10):
        reach, angle = (radius, 0.45 * radius)[corner % 2], math.pi * corner / 5
        corners.append(f"{x + reach * math.sin(angle):.1f} {y - reach * math.cos(angle):.1f}")
    return "M" + "L".join(corners) + "Z"


def _stairs(corners: Sequence[tuple[float, float]]) -> str:
    if not corners:
        return ""
    (x, y), *others = corners
    return f"M{x} {y}" + "".join(f"H{right}V{above}" for right, above in others)


def _thinned(one: Series) -> Series:
    """At most so many points, the last always among them."""
    every = math.ceil(len(one.points) / _MOST_POINTS)
    kept = [place for place in range(len(one.points)) if (len(one.points) - 1 - place) % max(1, every) == 0]
    points = [one.points[place] for place in kept]
    return replace(one, points=points, band=[one.band[place] for place in kept if one.band])
