"""Measurements that are kept with their spread."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.analysis.spreads import draw_rows, means, spread_table
from lit_fednas.analysis.style import legend, new_figure

TABLE = """method,accuracy_percent,accuracy_percent_low,accuracy_percent_high,gb
A,50.10,49.6,50.7,1.20
B,40.0,,,
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_tables_show_digits_as_they_are_kept(path):
    table = spread_table(path)
    assert list(table.columns) == ["method", "accuracy (%)", "GB"]
    assert table.to_numpy().tolist() == [["A", "50.10 (49.6 to 50.7)", "1.20"], ["B", "40.0", ""]]


def test_points_are_in_their_rows_and_lines_have_the_spreads_ends(path):
    table = pd.read_csv(path, index_col="method")
    figure = new_figure()
    (axes,) = figure.axes
    draw_rows(axes, {"accuracy": means(table, "accuracy_percent"), "data": means(table, "gb")}, "x")
    legend(figure)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B"]
    accuracy, data = axes.containers
    assert accuracy.lines[0].get_xdata().tolist() == [50.1, 40.0]
    assert [round(y) for y in accuracy.lines[0].get_ydata()] == [0, 1]
    ends = accuracy.lines[2][0].get_segments()[0]
    assert ends[:, 0].tolist() == pytest.approx([49.6, 50.7])
    assert data.lines[0].get_xdata().tolist() == [1.2]
    assert axes.yaxis_inverted()
