"""Where the report's charts put things, and which architectures they can draw."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from lit_fednas.analysis.report.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Event,
    Mark,
    Series,
    front_chart,
    line_chart,
)
from lit_fednas.analysis.report.dots import dot_plot
from lit_fednas.analysis.report.drawings import draw_all, read_stages
from lit_fednas.analysis.report.markup import Html, code, join, tag
from lit_fednas.analysis.report.scales import Scale, spread, ticks
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import ElasticResNet


def paths(html: Html, look: str) -> list[list[tuple[float, float]]]:
    """Points of all paths of a class."""
    found = re.findall(rf'<path d="([^"]*)" class="{look}">', html)
    return [[(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)] for path in found]


@pytest.mark.parametrize("seed", range(200))
def test_ticks_are_few_round_and_within(seed: int) -> None:
    low, reach = numpy_generator(seed, "ticks").normal(0, [10.0 ** (seed % 7 - 3), 10.0 ** (seed % 5 - 2)])
    high = low + abs(reach)
    found = np.array(ticks(low, high))
    assert 2 <= len(found) <= 5
    assert low - 1e-9 <= found.min()
    assert found.max() <= high + 1e-9
    steps = np.diff(found)
    assert np.allclose(steps, steps[0])
    assert round(steps[0] / 10 ** np.floor(np.log10(steps[0] * 1.0001))) in (1, 2, 5)
    assert found.min() - steps[0] < low
    assert high < found.max() + steps[0]


def test_logarithmic_axes() -> None:
    scale = spread([1, 100], 0, 300, log=True)
    assert scale.log
    assert scale(10) == 150
    assert scale.ticks == [1, 10, 100]
    assert spread([2, 45], 0, 300, log=True).ticks == [3, 10, 30]
    assert not spread([1, 20], 0, 300, log=True).log
    assert not spread([0, 20], 0, 300, log=True).log


@pytest.mark.parametrize("values", [[], [3.0], [0.0, 0.0], [float("nan"), 1.0]])
def test_axes_have_a_length_whatever_the_values(values: list[float]) -> None:
    scale = spread(values, 0, 100)
    assert scale.low < scale.high
    assert scale.ticks


def test_lines_and_columns() -> None:
    a = Series("a", [(0, 0.0), (2, 1.0)], [(0.0, 0.5), (0.75, 2.0)])
    chart = line_chart("title", [a, Series("b", [(2, 0.25), (4, 0.5)])], "round", "loss")
    first, second = paths(chart, "line")
    middle = (LEFT + RIGHT) / 2
    assert first[1][0] == second[0][0] == middle
    assert first[0][1] - first[1][1] == pytest.approx(4 * (first[0][1] - second[0][1]), abs=0.5)
    ((upper_left, upper_right, lower_right, lower_left),) = paths(chart, "band")
    assert lower_left == first[0]
    assert TOP < upper_right[1] < lower_right[1] < upper_left[1] < BOTTOM
    tips = re.findall(r'data-tip="([^"]*)"', chart)
    assert tips == ["round 0\na: 0", "round 2\na: 1\nb: 0.25", "round 4\nb: 0.5"]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', chart)]
    assert sum(widths) == pytest.approx(RIGHT - LEFT, abs=0.5)  # a pointer is always over one


def test_long_lines_are_thinned_and_end_where_they_end() -> None:
    points = [(x, float(x % 7)) for x in range(1500)]
    chart = line_chart("title", [Series("a", points, [(y, y + 1) for _, y in points])], "round", "loss")
    (line,) = paths(chart, "line")
    assert len(line) == 300
    assert "round 1499\n" in chart
    assert len(paths(chart, "band")[0]) == 600


def test_front() -> None:
    marks = [Mark(1, 0.2, "one"), Mark(3, 0.6, "two"), Mark(3, 0.6, "best", best=True)]
    cloud = [(1.0, 0.2), (3.0, 0.6), (5.0, 0.4), (5.0, 0.4000001)]
    chart = front_chart("title", 8, cloud, marks, [4.0], ("MACs", "accuracy"))
    (limit,) = re.findall(r'<path d="M([\d.]+) [\d.]+V[\d.]+" class="limit">', chart)
    (stairs,) = re.findall(r'<path d="M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)" class="line">', chart)
    assert float(stairs[0]) < float(stairs[2]) < float(limit)
    assert float(stairs[1]) > float(stairs[3])  # more accurate is higher up
    dots = re.search(r'<path d="([^"]*)" class="cloud">', chart)
    assert dots is not None
    assert dots[1].count("M") == 3  # of two on one pixel, one
    assert re.findall(r'data-tip="([^"]*)"', chart) == ["one", "two", "best"]
    assert 'class="s1 d1"' in chart


def test_dots_have_areas_by_count() -> None:
    table = pd.DataFrame({"client": [0, 1], "size": [16, 5], "cat": [16, 4], "dog": [0, 1]})
    plot = dot_plot(table)
    radii = [float(r) for r in re.findall(r'r="([\d.]+)" class="dot"', plot)]
    assert radii[0] / radii[1] == pytest.approx(2)
    assert radii[0] / radii[2] == pytest.approx(4)
    assert re.findall(r'data-tip="([^"]*)"', plot) == ["client 0, cat: 16", "client 1, cat: 4", "client 1, dog: 1"]


def test_stages_are_those_of_the_space() -> None:
    space = ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[64, 96, 128]).space
    rng = numpy_generator(0, "stages")
    for arch in [space.smallest, space.largest, *(space.sample(rng) for _ in range(50))]:
        stages = read_stages(str(arch))
        assert stages is not None
        assert [len(stage) - 1 for stage in stages.ratios] == list(arch.depths)
        for place, stage in enumerate(stages.ratios):
            start = place * space.blocks
            assert stage == arch.ratios[start : start + len(stage)]


@pytest.mark.parametrize(
    "text",
    [
        "whole",
        "",
        "d: [], e: 0.1",
        "d: [1], e: [0.1]",
        "d: [0,0], e: [0.1,0.2,0.3]",
        "d: [1.2], e: 0.1",
        "d: [0], e: ..",
    ],
)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert read_stages(text) is None
    assert draw_all([text])[0].replace("<wbr>", "") == f"<p><code>{text}</code></p>"


def test_all_drawings_have_one_measure() -> None:
    small, large = draw_all(["d: [0,0], e: 0.1", "d: [0,2], e: [0.2,0.2,0.2,0.1,0.4,0.2]"])
    assert re.findall(r"width:([\d.]+)%", small) == ["25", "25"]
    assert re.findall(r"width:([\d.]+)%", large) == ["50", "25", "100", "50"]
    assert small.count("block absent") == 4
    assert large.count("block absent") == 2


def test_markup() -> None:
    assert tag("p", "<b>", tag("i", "&"), 3, None, ["a", 0.5], class_="x", title='a"<', hidden=None) == (
        '<p class="x" title="a&quot;&lt;">&lt;b&gt;<i>&amp;</i>3a0.5</p>'
    )
    assert join(tag("wbr"), 1_500_000) == "<wbr>1500000"
    assert code("a,<") == "<code>a,<wbr>&lt;</code>"
    assert Scale(0, 1, 0, 3)(1 / 3) == 1


def test_a_wide_line_stands_behind_the_others_and_keeps_its_place_in_the_legend() -> None:
    lines = [Series("one", [(0, 1), (1, 2)]), Series("all", [(0, 3), (1, 4)], wide=True)]
    html = line_chart("t", lines, "x", "y")
    drawn = re.findall(r'<g class="([^"]*)"><path d="[^"]*" class="line">', html)
    assert drawn == ["s1 d0 wide", "s0 d0"]
    assert re.findall(r'class="line ([^"]*)".*?</svg>(\w+)', html.split("</figcaption>")[1].split("<ul")[1]) == [
        ("s0 d0", "one"),
        ("s1 d0 wide", "all"),
    ]


def test_events_stand_upright_and_their_labels_do_not_touch() -> None:
    events = [Event(x, f"+{place}", f"event {place}", place) for place, x in enumerate((10, 11, 12, 60, 90))]
    html = line_chart("t", [Series("one", [(0, 1), (100, 2)])], "x", "y", events=events)
    across = spread([0, 100], LEFT, RIGHT, margin=0.02)
    uprights = re.findall(rf'<path d="M([\d.]+) {TOP}V{BOTTOM}" class="limit">', html)
    assert [float(x) for x in uprights] == [across(event.x) for event in events]
    labels = re.findall(r'<text x="([\d.]+)" y="10" class="middle">(\+\d)</text>', html)
    assert labels == [(str(across(x)), text) for x, text in ((10, "+0"), (60, "+3"), (90, "+4"))]
