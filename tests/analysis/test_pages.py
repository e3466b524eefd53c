"""Pages of any content, in the look of the report."""

from __future__ import annotations

import base64
import re
import struct
from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.analysis.report import Charts, Table, frame_table, line_chart, picture, write_page
from lit_fednas.analysis.report.blocks import Code
from lit_fednas.analysis.style import PALETTE, new_figure
from lit_fednas.errors import ConfigError
from tests.analysis.pages import Page

FRAME = pd.DataFrame({"method": ["a", "<b>"], "accuracy": [0.51239, None], "runs": [3, 1200], "arch": ["x,y", "y"]})


def test_a_page_of_a_table_and_a_picture_has_no_script(tmp_path: Path) -> None:
    figure = new_figure(2)
    page = Page(
        write_page(
            "Two <methods>",
            {"Results": ["Said.", frame_table(FRAME), Charts([picture("By round", figure)])]},
            tmp_path / "compare.html",
            summary="Three seeds.",
            tiles=[("runs", "6", "of two methods")],
            notes=["The end."],
        )
    )
    assert (page.texts["h1"], page.texts["h2"]) == (["Two <methods>"], ["Results"])
    assert page.texts["td"] == ["a", "0.5124", "3", "<b>", "–", "1,200"]
    assert page.texts["code"] == ["x,", "y", "y"]  # it may break behind the comma
    assert page.texts["p"] == ["Three seeds.", "Said.", "The end."]
    assert page.texts["strong"] == ["6"]
    assert "script" not in page.count
    (source,) = re.findall(r'src="data:image/png;base64,([^"]*)"', page.text)
    width, height = struct.unpack(">II", base64.b64decode(source)[16:24])
    assert (width, height) == (7.2 * 200, 3.0 * 200)
    assert "min-width:648px" in page.text  # 90 pixels an inch
    assert len(re.findall(r"https?:|url\(", page.text)) == 0


def test_numbers_are_aligned_and_words_are_not(tmp_path: Path) -> None:
    rows = [["0", "1.5 k", "–", "widen layer1", Code("d: 1")], ["1", "–", "50%", "–", Code("d: 2")]]
    page = Page(write_page("t", {"s": [Table(["n", "MACs", "share", "done", "arch"], rows)]}, tmp_path / "page.html"))
    heads = re.findall(r'<th scope="col"( class="number")?>(\w+)', page.text)
    assert heads == [("", "n"), (' class="number"', "MACs"), (' class="number"', "share"), ("", "done"), ("", "arch")]
    assert len(re.findall(r'<td class="number">', page.text)) == 2 * 2


def test_a_legend_names_the_lines_and_their_traces(tmp_path: Path) -> None:
    lines = {name: pd.Series([0.5, 1.0]) for name in ("a", "<b>", "all")}
    chart = line_chart("t", lines, "x", "y", names=[*map(str, range(8)), "a"], wide="all")
    page = Page(write_page("t", {"s": [Charts([chart])]}, tmp_path / "page.html"))
    assert page.count["script"] == 1
    assert page.names == ["a", "<b>", "all"]
    assert re.findall(r'data-traces="(.*?)"', page.text) == ["0", "1", "2"]
    keys = re.findall(r'class="(key.*?)".*?<path d="M0 4h26"(?: style="stroke:var\(--series-(\d)\)")?', page.text, re.S)
    assert keys == [("key dash-1", "1"), ("key dash-1", "2"), ("key wide", "")]
    for place, colour in enumerate(PALETTE):
        assert f"--series-{place}: {colour};" in page.text


def test_a_page_needs_room(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="output"):
        write_page("t", {}, tmp_path)
