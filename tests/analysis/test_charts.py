"""The tables and charts of a page: drawings and texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lit_fednas.analysis import SearchResult, pareto_figure
from lit_fednas.analysis.charts import Chart, Charts, line_chart, say
from lit_fednas.analysis.report import write_page
from lit_fednas.analysis.style import new_figure
from lit_fednas.analysis.tables import Table, csv_text
from tests.analysis.pages import Page


def line(xs: list[float], ys: list[float | None]) -> pd.Series:
    return pd.Series(ys, xs, dtype=float)


def tips_of(chart: Chart) -> list[str | None]:
    return [column.get_gid() for column in chart.figure.axes[0].patches]


def test_lines_are_read_at_every_x() -> None:
    """Missing numbers are left out, and so are lines without any number."""
    bounded = pd.DataFrame({"mean": [0.0, 1.0], "min": [0.0, 0.75], "max": [0.5, 2.0]}, index=[0, 2])
    lines = {"a": bounded, "b": line([2, 3, 4], [0.25, None, 0.5]), "none": line([0], [None])}
    chart = line_chart("title", lines, "round", "loss", zero=True)
    (axes,) = chart.figure.axes
    first, second = axes.get_lines()
    assert first.get_xydata().tolist() == [[0, 0], [2, 1]]
    assert second.get_xydata().tolist() == [[2, 0.25], [4, 0.5]]
    (band,) = axes.collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} >= {(0, 0.5), (2, 2.0), (2, 0.75), (0, 0.0)}
    assert axes.get_ylim()[0] == 0
    assert tips_of(chart) == ["round 0\na: 0", "round 2\na: 1\nb: 0.25", "round 4\nb: 0.5"]
    assert [(column.get_x(), column.get_width()) for column in axes.patches][1] == (1, 2)  # halfway to its neighbours


def test_accuracies_are_in_percent_and_described_in_words(tmp_path: Path) -> None:
    chart = line_chart("Curves", {"a": line([1, 20], [0.125, 0.5])}, "rounds", "accuracy")
    assert tips_of(chart) == ["rounds 1\na: 12.5", "rounds 20\na: 50.0"]
    page = Page(write_page("t", {"s": [Charts([chart])]}, tmp_path / "page.html"))
    (words,) = [attributes["aria-label"] for kind, attributes in page.elements if kind == "svg"]
    assert words == "Curves; accuracy (%) over rounds: a from 12.5 to 50"
    assert "svg text { fill: currentColor; }" in page.text  # else black on a dark page


def test_a_page_of_tables_and_charts_has_no_script(tmp_path: Path) -> None:
    frame = pd.DataFrame({"method": ["a", "<b>"], "accuracy": [0.51239, None], "runs": [3, 1200], "arch": ["x,y", "y"]})
    table = Table.of(frame, ["method", "accuracy", "runs", "arch", "absent"])
    lines = line_chart("Lines", {"<i>": line([0, 4], [1, 2])}, "x", "y")
    points = new_figure()
    say(points.axes[0], 1, 0.25, 'one & "only" 1.2345')
    say(points.axes[0], 3, 0.75, "patch_2 of two")
    charts = Charts([lines, Chart("Points", points)])
    words = {"summary": "Three seeds.", "tiles": [("runs", "6", "of two methods")], "notes": ["The end."]}
    page = Page(write_page("Two <methods>", {"Results": ["Said.", table, charts]}, tmp_path / "page.html", **words))
    assert (page.texts["h1"], page.texts["h2"]) == (["Two <methods>"], ["Results"])
    assert page.texts["td"] == ["a", "51.2", "3", "<b>", "–", "1,200"]
    assert page.texts["code"] == ["x,", "y", "y"]
    assert csv_text(table.frame) == frame.to_csv(index=False)
    assert page.texts["p"] == ["Three seeds.", "Said.", "The end."]
    assert not {"script", "i", "u", "img"} & page.count.keys()
    assert page.tips == ["x 0\n<i>: 1", "x 4\n<i>: 2", 'one & "only" 1.2345', "patch_2 of two"]


def test_very_many_points_become_an_image(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((1001, 2)) + 1
    evaluations = pd.DataFrame(points, columns=["macs", "accuracy"]).assign(tier="*", arch="a")
    best = evaluations[:0].assign(val_accuracy=0.0)
    search = SearchResult("search", {}, evaluations, evaluations, evaluations[:3], best, {})
    page = Page(write_page("t", {"s": [Charts([Chart("Cloud", pareto_figure(search))])]}, tmp_path / "page.html"))
    assert (page.count["image"], page.count["svg"], len(page.tips)) == (1, 1, 3)
    assert len(page.text) < 100_000
