"""HTML and SVG whose texts are escaped wherever they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

_VOID = {"meta", "wbr"}


class Html(str):
    """Text that is markup already."""


Part: TypeAlias = "str | float | Iterable[Part] | None"


def join(*parts: Part) -> Html:
    """Parts one after the other; what is not markup is escaped, ``None`` is left out.

    Example:
        >>> join(tag("b", "a < b"), " & c")
        '<b>a &lt; b</b> &amp; c'
    """
    return Html("".join(_text(part) for part in parts))


def tag(name: str, /, *parts: Part, **attributes: str | float | None) -> Html:
    """An element; without attributes of ``None``; ``class_`` becomes ``class``, ``data_tip`` ``data-tip``.

    Example:
        >>> tag("p", 3, class_="note", title='"')
        '<p class="note" title="&quot;">3</p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    words = "".join(f' {key}="{escape(_number(value))}"' for key, value in given.items())
    return Html(f"<{name}{words}>" if name in _VOID else f"<{name}{words}>{join(*parts)}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[Part]], texts: int = 1) -> Html:
    """A table that scrolls inside its own box; the first columns are texts, the others numbers."""
    lines = [
        tag("tr", [tag("td", cell, class_=None if place < texts else "number") for place, cell in enumerate(row)])
        for row in rows
    ]
    titles = [tag("th", name, scope="col", class_=None if i < texts else "number") for i, name in enumerate(head)]
    inner = tag("table", tag("thead", tag("tr", titles)), tag("tbody", lines))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=f"table by {head[0]}")


def code(text: str) -> Html:
    """An architecture's or a setting's text, which may break after its commas."""
    first, *others = text.split(",")
    return tag("code", first, [(",", tag("wbr"), piece) for piece in others])


def _text(part: Part) -> str:
    if part is None:
        return ""
    if isinstance(part, Html):
        return part
    if isinstance(part, str | int | float):
        return escape(_number(part))
    return join(*part)


def _number(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
