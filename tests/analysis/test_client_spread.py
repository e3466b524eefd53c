"""Spread of clients' accuracies, by hand; boxes against matplotlib-free quartiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lit_fednas.analysis import client_boxes, fairness_table
from lit_fednas.errors import DataError
from tests.analysis.test_fairness import write


@pytest.fixture
def groups(tmp_path: Path) -> dict[str, list[Path]]:
    one = write(tmp_path / "one", {"a": [0.1, 0.2, 0.3, 0.4, 0.9]})
    two = write(tmp_path / "two", {"a": [0.5, 0.6], "b": [0.7, 0.8]})
    three = write(tmp_path / "three", {"*": [0.5, 0.5, 0.6]})
    return {"ours": [one, two], "theirs": [three]}


def test_figures_by_hand(groups) -> None:
    table = fairness_table(groups)
    table = table[table["tier"] == "*"].set_index("name")[["runs", "clients", "mean", "iqr", "worst"]]
    # quartiles 0.2 and 0.4; 0.575 and 0.725
    assert table.loc["ours"].tolist() == pytest.approx([2, 4.5, (0.38 + 0.65) / 2, (0.2 + 0.15) / 2, 0.3])
    assert table.loc["theirs"].tolist() == pytest.approx([1, 3, 1.6 / 3, 0.05, 0.5])


def test_boxes_by_hand(groups) -> None:
    figure = client_boxes(groups)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["ours", "theirs"]
    assert axes.get_xticks().tolist() == [0, 1]
    assert len(axes.patches) == 2
    heights = axes.patches[0].get_path().vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((30, 70))  # of all runs' clients
    lines = [
        set(np.round(line.get_ydata(), 6).tolist()) for line in axes.lines if np.allclose(line.get_xdata(), 0, atol=0.4)
    ]
    assert {50.0} in lines  # the median
    theirs = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "D"][1]
    assert theirs == pytest.approx([160 / 3])  # the mean, where it is not the median
    assert {10.0, 30.0} in lines  # whiskers to the ends
    assert {70.0, 90.0} in lines


def test_clients_beyond_the_whiskers_are_dots(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", {"a": [0.5, 0.5, 0.51, 0.52, 0.52, 0.99]})
    (axes,) = client_boxes({"x": [folder]}).axes
    drawn = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "."]
    assert drawn == [[99.0]]


def test_many_names_are_tilted(groups) -> None:
    one = groups["ours"]
    (axes,) = client_boxes({f"a long name {number}": one for number in range(4)}).axes
    assert {text.get_rotation() for text in axes.get_xticklabels()} == {25}
    (axes,) = client_boxes({"a": one}).axes
    assert {text.get_rotation() for text in axes.get_xticklabels()} == {0}


def test_broken_folders_are_told(tmp_path: Path) -> None:
    for function in (fairness_table, client_boxes):
        with pytest.raises(DataError, match="has no folder"):
            function({"x": []})
        with pytest.raises(DataError, match="is missing"):
            function({"x": [tmp_path]})
