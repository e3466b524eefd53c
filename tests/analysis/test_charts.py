"""What the report's charts draw and say, and which architectures they can draw."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from lit_fednas.analysis.report.blocks import Chart
from lit_fednas.analysis.report.charts import (
    GREY,
    Event,
    Mark,
    dot_plot,
    front_chart,
    line_chart,
    plain,
    tree_chart,
)
from lit_fednas.analysis.report.search_sections import draw_all
from lit_fednas.analysis.style import PALETTE
from lit_fednas.records import TierModel
from tests.analysis.pages import hover_texts


def traces(chart: Chart) -> list[dict[str, Any]]:
    return json.loads(chart.figure)["data"]


def line(xs: list[float], ys: list[float]) -> pd.Series:
    return pd.Series(ys, xs)


def layout(chart: Chart) -> dict[str, Any]:
    return json.loads(chart.figure)["layout"]


def test_lines_are_read_at_every_x() -> None:
    a = {"a": line([0, 2], [0.0, 1.0])}
    bounds = line([0, 2], [0.0, 0.75]), line([0, 2], [0.5, 2.0])
    lines = {**a, "b": line([2, 4], [0.25, 0.5])}
    chart = line_chart("title", lines, "round", "loss", zero=True, band=bounds)
    band, first, second = traces(chart)
    assert list(zip(band["x"], band["y"], strict=True)) == [(0, 0.5), (2, 2.0), (2, 0.75), (0, 0.0)]
    assert (band["fill"], band["hoverinfo"]) == ("toself", "skip")
    assert band["fillcolor"] == first["line"]["color"] != second["line"]["color"]
    assert [(one["name"], one["x"], one["y"]) for one in (first, second)] == [
        ("a", [0, 2], [0.0, 1.0]),
        ("b", [2, 4], [0.25, 0.5]),
    ]
    assert hover_texts(json.loads(chart.figure)) == ["round 0\na: 0", "round 2\na: 1\nb: 0.25", "round 4\nb: 0.5"]
    assert layout(chart)["yaxis"]["rangemode"] == "tozero"
    assert [(one.name, one.traces) for one in chart.legend] == [
        ("a", [0, 1]),
        ("b", [2]),
    ]  # the band goes with its line
    assert not line_chart("title", a, "round", "loss").legend


def test_no_ticks_between_few_rounds() -> None:
    ticks = layout(line_chart("t", {"a": line([1, 2], [3, 4])}, "round", "loss"))["xaxis"]["tickvals"]
    assert ticks == [1, 2]
    many = line_chart("t", pd.DataFrame({"a": range(9)}), "round", "loss")
    assert "tickvals" not in layout(many)["xaxis"]


def test_no_two_of_28_lines_look_alike() -> None:
    lines = pd.DataFrame({place: [0, 1] for place in range(4 * len(PALETTE))})
    chart = line_chart("t", lines, "x", "y")
    looks = [one["line"] for one in traces(chart)]
    assert len({(one["color"], one["dash"]) for one in looks}) == len(looks)
    assert {one["color"] for one in looks} == {f"var(--series-{place})" for place in range(len(PALETTE))}
    assert [one.index for one in chart.legend] == list(range(len(looks)))
    assert chart.height > 19 * len(looks)  # what hovering shows has a line for each


def test_a_name_looks_the_same_in_every_chart() -> None:
    lines = {name: line([0, 1], [1, 2]) for name in "abcd"}
    looks = {one["name"]: one["line"] for one in traces(line_chart("t", lines, "x", "y"))}
    some = line_chart("t", {"new": lines["a"], "all": lines["b"], "c": lines["c"]}, "x", "y", names="abcd", wide="all")
    found = {one["name"]: one["line"] for one in traces(some)}
    assert found["c"] == looks["c"]
    assert {one.name: one.index for one in some.legend} == {"new": 4, "all": None, "c": 2}
    assert found["new"]["color"] not in {one["color"] for one in looks.values()}


def test_missing_numbers_are_left_out() -> None:
    chart = line_chart("t", pd.DataFrame({"a": [0.5, None, 1.0], "b": [None] * 3}), "x", "y")
    assert [(one["name"], one["x"], one["y"]) for one in traces(chart)] == [("a", [0, 2], [0.5, 1.0])]
    assert line_chart("t", {}, "x", "y").figure


def test_front() -> None:
    front, best = [Mark(1, 0.2, "one"), Mark(3, 0.6, "two")], [Mark(3, 0.6, "best")]
    cloud = [(1.0, 0.2), (3.0, 0.6), (5.0, 0.4)]
    chart = front_chart("title", 8, pd.Series(dict(cloud)), front, best, [4.0], ("MACs", "accuracy"))
    points, limit, stairs, star = traces(chart)
    assert list(zip(points["x"], points["y"], strict=True)) == cloud
    assert (limit["x"], limit["y"], limit["line"]["dash"]) == ([4.0, 4.0], [0.2, 0.6], "dash")
    assert (stairs["x"], stairs["y"], stairs["line"]["shape"]) == ([1, 3], [0.2, 0.6], "hv")
    assert (star["marker"]["symbol"], star["x"]) == ("star", [3])
    assert {one["line"]["color"] for one in (limit, stairs)} == {star["marker"]["color"]} == {"var(--series-1)"}
    first = front_chart("title", 1, pd.Series(dict(cloud)), front, best, [4.0], ("MACs", "accuracy"))
    assert stairs["line"]["dash"] != traces(first)[2]["line"]["dash"]  # the eighth and the first of the colour
    assert stairs["marker"]["symbol"] != traces(first)[2]["marker"]["symbol"]
    assert hover_texts(json.loads(chart.figure)) == ["one", "two", "best"]


@pytest.mark.parametrize(
    ("xs", "log"),
    [((1, 20), False), ((0, 21), False), ((1, 21), True), ((1, 1e6), True), ((), False), ((3,), False)],
)
def test_costs_beyond_a_factor_of_twenty_have_a_logarithmic_axis(xs: tuple[float, ...], log: bool) -> None:
    chart = front_chart("t", 0, pd.Series(0.5, list(xs)), [], [], [], ("MACs", "accuracy"))
    assert (layout(chart)["xaxis"].get("type") == "log") == log


def test_dots_have_areas_by_count() -> None:
    table = pd.DataFrame({"client": [0, 7], "size": [16, 5], "cat": [16, 4], "a very long class name": [0, 1]})
    chart = dot_plot(table)
    (dots,) = traces(chart)
    assert (dots["x"], dots["y"]) == ([0, 1, 1], [0, 0, 1])
    assert (dots["marker"]["size"], dots["marker"]["sizemode"]) == ([16, 4, 1], "area")
    radius = (16 / (2 * dots["marker"]["sizeref"])) ** 0.5
    assert 20 < 2 * radius < 22  # the largest fills its cell
    assert hover_texts(json.loads(chart.figure)) == [
        *("client 0, cat: 16", "client 7, cat: 4", "client 7, a very long class name: 1")
    ]
    assert layout(chart)["xaxis"]["ticktext"] == ["0", "7"]
    assert layout(chart)["yaxis"]["ticktext"] == ["cat", "a very long cla…"]
    assert layout(chart)["yaxis"]["range"][0] > layout(chart)["yaxis"]["range"][1]  # the first is above
    assert traces(dot_plot(table.assign(cat=0, **{"a very long class name": 0})))[0]["x"] == []


def test_of_many_clients_some_are_drawn() -> None:
    chart = dot_plot(pd.DataFrame({"client": range(1000), "size": 2, "cat": 2}))
    (dots,) = traces(chart)
    assert chart.title == "Examples per client; the largest dot is 2; 200 of 1,000 clients, evenly spaced"
    assert dots["hovertext"] == [f"client {client}, cat: 2" for client in range(0, 1000, 5)]
    assert layout(chart)["xaxis"]["ticktext"][:2] == ["0", "25"]
    assert "evenly" not in dot_plot(pd.DataFrame({"client": range(200), "size": 2, "cat": 2})).title


def test_wide_dot_plots_scroll() -> None:
    narrow, wide = (
        dot_plot(pd.DataFrame({"client": range(count), "size": 1, "cat": 1})).width or 0 for count in (10, 100)
    )
    assert wide - narrow == 90 * 22
    ticks = layout(dot_plot(pd.DataFrame({"client": range(21), "size": 1, "cat": 1})))["xaxis"]["tickvals"]
    assert ticks == [0, 5, 10, 15, 20]


def test_a_tree() -> None:
    nodes = [Mark(1000, 0, "root"), Mark(4000, 1, "left"), Mark(2000, 2, "right")]
    words = [("start", "1 k"), ("round 1", "4 k\nwiden"), ("round 2", "2 k")]
    chart = tree_chart("t", nodes, [None, 0, 0], words)
    *branches, points = traces(chart)
    assert [(one["x"], one["y"]) for one in branches] == [
        ([1000, 1000, 4000], [0, 1, 1]),
        ([1000, 1000, 2000], [0, 2, 2]),
    ]
    assert (points["x"], points["y"], points["text"]) == ([1000, 4000, 2000], [0, 1, 2], ["0", "1", "2"])
    assert points["marker"]["line"]["color"] == [f"var(--series-{number})" for number in (0, 1, 2)]
    assert hover_texts(json.loads(chart.figure)) == ["root", "left", "right"]
    low, high = layout(chart)["xaxis"]["range"]  # of logarithms
    assert low < 3
    assert high > 3.602
    assert layout(chart)["yaxis"]["ticktext"] == ["start", "round 1", "round 2"]
    assert [one["text"] for one in layout(chart)["annotations"]] == ["1 k", "4 k<br>widen", "2 k"]


def tier(arch: str, *stages: list[list[object] | None]) -> TierModel:
    return TierModel("t", arch, [], "", [], 2, False, stages=stages)


def test_all_drawings_have_one_measure() -> None:
    models = {"a": tier("x", [["0.1", 0.1], None]), "b": tier("y", [["0.4", 0.4]], [["0.2", 0.2], ["id", 0]])}
    note, charts = draw_all({"a": "x", "b": "y", "c": "z"}, models)
    assert isinstance(note, str)
    drawn = [
        (one.title, one.arch, [[bar and (bar.text, bar.share) for bar in stage] for stage in one.stages])
        for one in charts.charts
    ]
    assert drawn == [
        ("a", "x", [[("0.1", 0.25), None]]),
        ("b", "y", [[("0.4", 1)], [("0.2", 0.5), ("id", 0)]]),
        ("c", "z", []),
    ]


def test_architectures_that_nothing_says_how_to_draw_are_texts() -> None:
    (charts,) = draw_all({"a": "d: [0], e: 0.1"}, {"a": tier("d: [0], e: 0.1")})
    assert [(one.arch, one.stages) for one in charts.charts] == [("d: [0], e: 0.1", [])]


def test_texts_are_plain_to_plotly() -> None:
    assert plain('<a href="x">&\n') == '&lt;a href="x"&gt;&amp;<br>'
    chart = line_chart("t", {"<b>": line([0], [1])}, "x", "y", events=[Event(0, "<i>", "<u>", 0)])
    assert "<" not in chart.figure.replace("<extra></extra>", "")


def test_a_wide_line_is_behind_the_others_and_keeps_its_place_in_the_legend() -> None:
    lines = {"one": line([0, 1], [1, 2]), "all": line([0, 1], [3, 4])}
    one, wide = traces(line_chart("t", lines, "x", "y", wide="all"))
    assert one["name"] == "one"
    assert wide["zorder"] < one["zorder"]
    assert wide["line"]["width"] > 2 * one["line"]["width"]
    assert wide["line"]["color"] == GREY


def test_events_are_upright_and_their_labels_do_not_touch() -> None:
    events = [Event(x, f"+{place}", f"event {place}", place) for place, x in enumerate((10, 11, 12, 60, 90))]
    chart = line_chart("t", {"one": line([0, 100], [1, 2])}, "x", "y", events=events)
    assert [shape["x0"] for shape in layout(chart)["shapes"]] == [event.x for event in events]
    labels = [(one["x"], one["text"]) for one in layout(chart)["annotations"]]
    assert labels == [(10, "+0"), (60, "+3"), (90, "+4")]
    told = hover_texts(json.loads(chart.figure))
    assert told[:3] == ["x 0\none: 1", "x 10\nevent 0", "x 11\nevent 1"]
