"""A parser of report pages: texts, and the hovering texts of charts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "wbr", "img"}


class Page(HTMLParser):
    """A page; its elements must close in order.

    It has all ``elements`` with their attributes, elements by name (``count``) and their ``texts``, the names of all
    ``attributes``, and the hovering texts (``tips``).
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.texts: dict[str, list[str]] = {}
        self.tips: list[str] = []
        self.attributes: set[str] = set()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self.elements.append((tag, dict(attrs)))
        self.tips += [value or "" for name, value in attrs if name == "title"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
            if self.open[-1] == "title" and "svg" in self.open:
                self.tips.append(data)
