"""What a page is made of: its tables and pictures, what its charts draw and say, which architectures it draws."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lit_fednas.analysis.report import Charts, frame_table, picture, write_page
from lit_fednas.analysis.report.blocks import Chart
from lit_fednas.analysis.report.charts import GREY, Event, Mark, dot_plot, front_chart, line_chart, plain, tree_chart
from lit_fednas.analysis.report.search_sections import draw_all
from lit_fednas.analysis.style import PALETTE, look, new_figure
from lit_fednas.errors import ConfigError
from lit_fednas.records import TierModel
from tests.analysis.pages import Page, hover_texts


def traces(chart: Chart) -> list[dict[str, Any]]:
    return json.loads(chart.figure)["data"]


def layout(chart: Chart) -> dict[str, Any]:
    return json.loads(chart.figure)["layout"]


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
    assert band["fillcolor"] == first["line"]["color"] != second["line"]["color"]
    assert [(one["name"], one["x"], one["y"], one["mode"]) for one in (first, second)] == [
        ("a", [0, 2], [0.0, 1.0], "lines"),
        ("b", [2, 4], [0.25, 0.5], "lines"),
    ]
    assert said(chart) == ["round 0\na: 0", "round 2\na: 1\nb: 0.25", "round 4\nb: 0.5"]
    assert {one.name: one.traces for one in chart.legend} == {"a": [0, 1], "b": [2]}  # the band goes with its line
    alone = line_chart("title", {"a": line([1], [3])}, "round", "loss")
    assert not alone.legend
    assert traces(alone)[0]["mode"] == "markers"
    long = line_chart("t", pd.DataFrame({"a": range(9)}), "round", "loss")
    assert [layout(one)["xaxis"].get("tickvals") for one in (alone, long)] == [[1], None]  # none between few rounds


def test_no_two_of_28_lines_look_alike() -> None:
    count = 4 * len(PALETTE)
    chart = line_chart("t", pd.DataFrame({place: [0, 1] for place in range(count)}), "x", "y")
    looks = [one["line"] for one in traces(chart)]
    assert len({(one["color"], one["dash"]) for one in looks}) == len(looks) == count
    assert {one["color"] for one in looks} == {f"var(--series-{place})" for place in range(len(PALETTE))}
    assert [one.index for one in chart.legend] == list(range(count))
    assert chart.height > 19 * count  # what hovering shows has a line for each
    assert len({tuple(look(place).values()) for place in range(count)}) == count


def test_a_name_looks_the_same_in_every_chart() -> None:
    lines = {name: line([0, 1], [1, 2]) for name in "abcd"}
    looks = {one["name"]: one["line"] for one in traces(line_chart("t", lines, "x", "y"))}
    some = line_chart("t", {"new": lines["a"], "all": lines["b"], "c": lines["c"]}, "x", "y", names="abcd", wide="all")
    found = {one["name"]: one for one in traces(some)}
    assert found["c"]["line"] == looks["c"]
    assert {one.name: one.index for one in some.legend} == {"new": 4, "all": None, "c": 2}
    assert found["new"]["line"]["color"] not in {one["color"] for one in looks.values()}
    assert found["all"]["line"]["color"] == GREY
    assert found["all"]["zorder"] < found["c"]["zorder"]


def test_events_are_upright_and_their_labels_do_not_touch() -> None:
    events = [Event(x, f"+{place}", f"event {place}", place) for place, x in enumerate((10, 11, 12, 60, 90))]
    chart = line_chart("t", {"one": line([0, 100], [1, 2])}, "x", "y", events=events)
    assert [shape["x0"] for shape in layout(chart)["shapes"]] == [event.x for event in events]
    labels = [(one["x"], one["text"]) for one in layout(chart)["annotations"]]
    assert labels == [(10, "+0"), (60, "+3"), (90, "+4")]
    assert said(chart)[:3] == ["x 0\none: 1", "x 10\nevent 0", "x 11\nevent 1"]
    assert traces(chart)[-1]["y"] == [2] * 5


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
    assert {one["line"]["color"] for one in (limit, stairs)} == {star["marker"]["color"]} == {"var(--series-1)"}
    assert said(chart) == ["one", "two", "best"]
    assert [layout(chart)[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == ["MACs", "accuracy"]
    assert layout(chart)["xaxis"]["dtick"] == "D2"  # logarithmic beyond a factor of 20
    linear = front_chart("t", 0, pd.Series(0.5, [1, 20]), [], [], [], ("MACs", "accuracy"))
    assert layout(linear)["xaxis"].get("type") != "log"


def test_dots_have_areas_by_count() -> None:
    table = pd.DataFrame({"client": [0, 7], "size": [16, 5], "cat": [16, 4], "a very long class name": [0, 1]})
    chart = dot_plot(table)
    (dots,) = traces(chart)
    assert (dots["x"], dots["y"]) == ([0, 1, 1], [0, 0, 1])
    assert (dots["marker"]["size"], dots["marker"]["sizemode"]) == ([16, 4, 1], "area")
    radius = (16 / (2 * dots["marker"]["sizeref"])) ** 0.5
    assert 20 < 2 * radius < 22  # the largest fills its cell
    assert said(chart) == ["client 0, cat: 16", "client 7, cat: 4", "client 7, a very long class name: 1"]
    assert chart.title == "Examples per client and class; the largest dot is 16"
    assert layout(chart)["xaxis"]["ticktext"] == ["0", "7"]
    assert layout(chart)["yaxis"]["ticktext"] == ["cat", "a very long cla…"]
    many = dot_plot(pd.DataFrame({"client": range(1000), "size": 2, "cat": 2}))
    assert many.title == "Examples per client; the largest dot is 2; 200 of 1,000 clients, evenly spaced"
    assert traces(many)[0]["hovertext"] == [f"client {client}, cat: 2" for client in range(0, 1000, 5)]


def test_a_tree() -> None:
    nodes = [Mark(1000, 0, "root"), Mark(4000, 1, "left"), Mark(2000, 2, "right")]
    words = [("start", "1 k"), ("round 1", "4 k\nwiden"), ("round 2", "2 k")]
    chart = tree_chart("t", nodes, [None, 0, 0], words)
    *branches, points = traces(chart)
    paths = [(one["x"], one["y"]) for one in branches]
    assert paths == [([1000, 1000, 4000], [0, 1, 1]), ([1000, 1000, 2000], [0, 2, 2])]
    assert (points["x"], points["y"], points["text"]) == ([1000, 4000, 2000], [0, 1, 2], ["0", "1", "2"])
    assert said(chart) == ["root", "left", "right"]
    assert layout(chart)["yaxis"]["ticktext"] == ["start", "round 1", "round 2"]
    assert [one["text"] for one in layout(chart)["annotations"]] == ["1 k", "4 k<br>widen", "2 k"]


def test_all_drawings_have_one_measure() -> None:
    """Architectures that nothing says how to draw are texts."""

    def tier(arch: str, *stages: list[list[object] | None]) -> TierModel:
        return TierModel("t", arch, [], "", [], 2, False, stages=stages)

    models = {"a": tier("x", [["0.1", 0.1], None]), "b": tier("y", [["0.4", 0.4]], [["0.2", 0.2], ["id", 0]])}
    _, charts = draw_all({"a": "x", "b": "y", "c": "z"}, models)
    drawn = {
        one.title: [[bar and (bar.text, bar.share) for bar in stage] for stage in one.stages] for one in charts.charts
    }
    assert drawn == {"a": [[("0.1", 0.25), None]], "b": [[("0.4", 1)], [("0.2", 0.5), ("id", 0)]], "c": []}


def test_a_page_of_a_table_and_a_picture_has_no_script(tmp_path: Path) -> None:
    table = pd.DataFrame({"method": ["a", "<b>"], "accuracy": [0.51239, None], "runs": [3, 1200], "arch": ["x,y", "y"]})
    sections = {"Results": ["Said.", frame_table(table), Charts([picture("By round", new_figure(2))])]}
    words = {"summary": "Three seeds.", "tiles": [("runs", "6", "of two methods")], "notes": ["The end."]}
    page = Page(write_page("Two <methods>", sections, tmp_path / "compare.html", **words))
    assert (page.texts["h1"], page.texts["h2"]) == (["Two <methods>"], ["Results"])
    assert page.texts["td"] == ["a", "0.5124", "3", "<b>", "–", "1,200"]
    assert re.findall(r'<th scope="col"( class="number")?>', page.text) == ["", *[' class="number"'] * 2, ""]
    assert page.texts["code"] == ["x,", "y", "y"]  # it may break behind the comma
    assert page.texts["p"] == ["Three seeds.", "Said.", "The end."]
    assert "script" not in page.count
    (source,) = re.findall(r'src="data:image/png;base64,([^"]*)"', page.text)
    assert struct.unpack(">II", base64.b64decode(source)[16:24]) == (7.2 * 200, 3.0 * 200)
    assert "min-width:648px" in page.text  # 90 pixels an inch
    with pytest.raises(ConfigError, match="output"):
        write_page("t", {}, tmp_path)


def test_a_legend_names_the_lines_and_their_traces(tmp_path: Path) -> None:
    lines = {name: pd.Series([0.5, 1.0]) for name in ("a", "<b>", "all")}
    chart = line_chart("t", lines, "x", "y", names=[*map(str, range(8)), "a"], wide="all")
    page = Page(write_page("t", {"s": [Charts([chart])]}, tmp_path / "page.html"))
    assert page.names == ["a", "<b>", "all"]
    assert re.findall(r'data-traces="(.*?)"', page.text) == ["0", "1", "2"]
    keys = re.findall(r'class="(key.*?)".*?<path d="M0 4h26"(?: style="stroke:var\(--series-(\d)\)")?', page.text, re.S)
    assert keys == [("key dash-1", "1"), ("key dash-1", "2"), ("key wide", "")]
    assert all(f"--series-{place}: {colour};" in page.text for place, colour in enumerate(PALETTE))
