"""What a page is made of: its tables and pictures, what its charts draw and say, which architectures it draws."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import pandas as pd

from lit_fednas.analysis.report import Charts, frame_table, picture, write_page
from lit_fednas.analysis.report.blocks import Chart
from lit_fednas.analysis.report.charts import Event, Mark, front_chart, line_chart, plain
from lit_fednas.analysis.style import new_figure
from tests.analysis.pages import Page, hover_texts


def traces(chart: Chart) -> list[dict[str, Any]]:
    return json.loads(chart.figure)["data"]


def said(chart: Chart) -> list[str]:
    return hover_texts(json.loads(chart.figure))


def line(xs: list[float], ys: list[float | None]) -> pd.Series:
    return pd.Series(ys, xs, dtype=float)


def test_lines_are_read_at_every_x() -> None:
    """Missing numbers are left out, and lines of nothing else."""
    lines = {"a": line([0, 2], [0.0, 1.0]), "b": line([2, 3, 4], [0.25, None, 0.5]), "none": line([0], [None])}
    bounds = line([0, 2], [0.0, 0.75]), line([0, 2], [0.5, 2.0])
    chart = line_chart("title", lines, "round", "loss", zero=True, band=bounds)
    band, first, second = traces(chart)
    assert list(zip(band["x"], band["y"], strict=True)) == [(0, 0.5), (2, 2.0), (2, 0.75), (0, 0.0)]
    assert [(one["name"], one["x"], one["y"], one["mode"]) for one in (first, second)] == [
        ("a", [0, 2], [0.0, 1.0], "lines"),
        ("b", [2, 4], [0.25, 0.5], "lines"),
    ]
    assert said(chart) == ["round 0\na: 0", "round 2\na: 1\nb: 0.25", "round 4\nb: 0.5"]


def test_texts_are_plain_to_plotly() -> None:
    assert plain('<a href="x">&\n') == '&lt;a href="x"&gt;&amp;<br>'
    chart = line_chart("t", {"<b>": line([0], [1])}, "x", "y", events=[Event(0, "<i>", "<u>", 0)])
    assert "<" not in chart.figure.replace("<extra></extra>", "")


def test_front() -> None:
    front, best = [Mark(1, 0.2, "one"), Mark(3, 0.6, "two")], [Mark(3, 0.6, "best")]
    cloud = [(1.0, 0.2), (3.0, 0.6), (25.0, 0.4)]
    chart = front_chart("title", 8, pd.Series(dict(cloud)), front, best, [4.0], ("MACs", "accuracy"))
    points, limit, stairs, star = traces(chart)
    assert list(zip(points["x"], points["y"], strict=True)) == cloud
    assert (limit["x"], limit["y"]) == ([4.0, 4.0], [0.2, 0.6])
    assert (stairs["x"], stairs["y"], stairs["line"]["shape"]) == ([1, 3], [0.2, 0.6], "hv")
    assert (star["marker"]["symbol"], star["x"]) == ("star", [3])
    assert said(chart) == ["one", "two", "best"]


def test_a_page_of_a_table_and_a_picture_has_no_script(tmp_path: Path) -> None:
    table = pd.DataFrame({"method": ["a", "<b>"], "accuracy": [0.51239, None], "runs": [3, 1200], "arch": ["x,y", "y"]})
    sections = {"Results": ["Said.", frame_table(table), Charts([picture("By round", new_figure(2))])]}
    words = {"summary": "Three seeds.", "tiles": [("runs", "6", "of two methods")], "notes": ["The end."]}
    page = Page(write_page("Two <methods>", sections, tmp_path / "compare.html", **words))
    assert (page.texts["h1"], page.texts["h2"]) == (["Two <methods>"], ["Results"])
    assert page.texts["td"] == ["a", "0.5124", "3", "<b>", "–", "1,200"]

    assert page.texts["p"] == ["Three seeds.", "Said.", "The end."]
    assert "script" not in page.count
    (source,) = re.findall(r'src="data:image/png;base64,([^"]*)"', page.text)
    assert struct.unpack(">II", base64.b64decode(source)[16:24]) == (7.2 * 200, 3.0 * 200)
