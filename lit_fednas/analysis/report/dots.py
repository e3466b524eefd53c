"""The partition as dots (SuperFed, Fig. 9): a dot per client and class, its area the number of examples."""

from __future__ import annotations

import pandas as pd

from lit_fednas.analysis.report.charts import drawing, figure
from lit_fednas.analysis.report.markup import Html, tag

_CELL = 22
_HEAD = 20


def dot_plot(partition: pd.DataFrame) -> Html:
    """The largest dot fills its cell; wide plots scroll in their box.

    Args:
        partition: ``client``, ``size``, and the count of each class.
    """
    classes = list(partition.columns[2:])
    most = max(1, int(partition[classes].to_numpy().max()))
    left = 14 + 7 * min(16, max(5, *(len(name) for name in classes)))
    width = left + _CELL * len(partition) + 8
    height = _CELL * len(classes) + _HEAD + 26
    inside = [
        [_row(place, name, left, width) for place, name in enumerate(classes)],
        _clients(partition, left, height, width),
        [
            _dot(
                left + _CELL * (column + 0.5), _HEAD + _CELL * (row + 0.5), count, most, f"client {client}, {name}"
            )
            for column, client in enumerate(partition["client"])
            for row, name in enumerate(classes)
            if (count := int(partition[name].iloc[column]))
        ],
    ]
    drawn = tag("div", drawing("examples per client and class", inside, width, height), style=f"width:{width:g}px")
    title = f"Examples per client and class; the largest dot is {most:,}"
    return figure(title, tag("div", drawn, class_="scroll dots", tabindex=0, role="region", aria_label=title))


def _row(place: int, name: str, left: float, width: float) -> Html:
    y = _HEAD + _CELL * (place + 0.5)
    short = name if len(name) <= 16 else name[:15] + "…"
    line = tag("path", d=f"M{left:g} {y:g}H{width - 8:g}", class_="grid")
    return tag("g", line, tag("text", short, x=left - 8, y=y + 4, class_="end"), class_="frame")


def _clients(partition: pd.DataFrame, left: float, height: float, width: float) -> Html:
    every = 1 if len(partition) <= 20 else 5
    shown = [(place, client) for place, client in enumerate(partition["client"]) if place % every == 0]
    return tag(
        "g",
        [
            tag("text", str(c), x=left + _CELL * (place + 0.5), y=height - 26 + 14, class_="middle")
            for place, c in shown
        ],
        tag("text", "class", x=left - 8, y=12, class_="end name"),
        tag("text", "client →", x=left, y=12, class_="name"),
        class_="frame",
    )


def _dot(x: float, y: float, count: int, most: int, where: str) -> Html:
    radius = max(1.0, 0.47 * _CELL * (count / most) ** 0.5)  # a single example stays visible
    return tag(
        "g",
        tag("circle", cx=x, cy=y, r=_CELL / 2, class_="hit"),
        tag("circle", cx=x, cy=y, r=radius, class_="dot"),
        class_="mark s0",
        data_tip=f"{where}: {count:,}",
    )
