"""Reads a report's page as its reader does: texts, and what its charts say on hovering."""

from __future__ import annotations

import html
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

VOID = {"meta", "wbr", "img"}


class Page(HTMLParser):
    """A page whose elements close in order; plotly's own script, which it may lack, is left out.

    It has elements by name (``count``) and their ``texts``, the names of all ``attributes``, the charts' data and
    layouts (``figures``), and what can be read by hovering (``tips``).
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.texts: dict[str, list[str]] = {}
        self.tips: list[str] = []
        self.attributes: set[str] = set()
        self.figures: list[dict[str, Any]] = []
        whole = path.read_text(encoding="utf-8")
        self.text = whole.replace(get_plotlyjs(), "")
        assert len(whole) - len(self.text) in (0, len(get_plotlyjs()))
        self.feed(self.text)
        self.close()
        assert self.open == []

    @property
    def names(self) -> list[str]:
        """Of all lines in all legends."""
        return [text.strip() for text in self.texts.get("button", []) if text.strip()]

    @property
    def labels(self) -> list[str]:
        """What stands at axes and beside points."""
        found = []
        for figure in self.figures:
            layout = figure["layout"]
            found += [text for axis in ("xaxis", "yaxis") for text in layout[axis].get("ticktext", [])]
            found += [one["text"] for one in layout.get("annotations", [])]
        return [plain for text in found for plain in html.unescape(text).split("<br>")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        if "data-figure" in given:
            self.figures.append(json.loads(given["data-figure"] or ""))
            self.tips += hover_texts(self.figures[-1])
        if "title" in given:
            self.tips.append(given["title"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def hover_texts(figure: dict[str, Any]) -> list[str]:
    """All that a figure says: of lines one text for every x, of points one each."""
    lines = [one for one in figure["data"] if one.get("hoverinfo") != "skip"]
    if figure["layout"]["hovermode"] == "closest":
        return [_read(text) for one in lines for text in one["hovertext"]]
    title = figure["layout"]["xaxis"]["unifiedhovertitle"]["text"]
    by_x: dict[float, list[str]] = {}
    for one in lines:
        assert one["hovertemplate"] in ("%{y:.4~g}", "%{text}<extra></extra>")
        for place, (x, y) in enumerate(zip(one["x"], one["y"], strict=True)):
            said = one["text"][place] if "text" in one else f"{one['name']}: {y:.4g}"
            by_x.setdefault(x, []).append(_read(said))
    return ["\n".join([title.replace("%{x}", f"{x:g}"), *by_x[x]]) for x in sorted(by_x)]


def _read(text: str) -> str:
    """As plotly shows it; only line breaks may be markup."""
    parts = text.split("<br>")
    assert not any("<" in part or ">" in part for part in parts)
    return "\n".join(html.unescape(part) for part in parts)
