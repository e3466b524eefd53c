"""Texts of users in figures: names of classes, methods, tiers and values are drawn as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lit_fednas.analysis import SearchResult, fronts_figure
from lit_fednas.analysis.charts import line_chart
from lit_fednas.records.partition import plot_partition

#: Names, and the texts that a figure must show for them.
NAMES = {
    "$0_to_$50": "$0_to_$50",
    "$\\frac$": "$\\frac$",
    "_hidden": "_hidden",
    "two\nlines": "two lines",
    "long" * 2500 + "$": "longlonglonglonglonglonglonglo…nglonglonglonglonglonglonglong"[:60],
    "bell\x07\u202e": "bell",
    "\U0001f408 \u0642\u0637\u0629": "\U0001f408 \u0642\u0637\u0629",
}


def _searches(name: str) -> dict[str, list[SearchResult]]:
    rows = pd.DataFrame({"tier": [name, "b"], "macs": [1, 2], "accuracy": [0.5, 0.6]}, dtype=object)
    rows = rows.astype({"macs": float, "accuracy": float})
    history = rows.assign(evaluations=4, hypervolume=1.0, best_accuracy=0.5)
    settings = {"cost": "macs", "tiers": [{"name": name}, {"name": "b"}]}
    result = SearchResult("search", settings, rows, history, rows, rows.assign(val_accuracy=0.5), {})
    return {name: [result], "b": [result]}


VALUES = pd.Series([0.1, 0.2])


FIGURES: dict[str, Callable[[str, Path], Figure]] = {
    "partition": lambda name, folder: plot_partition(np.array([[1, 2], [3, 0]]), [name, "b"]),
    "fronts": lambda name, folder: fronts_figure(_searches(name), "b"),
    "lines": lambda name, folder: line_chart("", {name: VALUES, "b": VALUES}, name, name).figure,
}


@pytest.mark.parametrize("kind", FIGURES)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_users_texts_are_drawn_as_they_are(kind: str, tmp_path: Path) -> None:
    for number, (name, expected) in enumerate(NAMES.items()):
        figure = FIGURES[kind](name, tmp_path / str(number))
        figure.draw_without_rendering()
        texts = [text._preprocess_math(text.get_text()) for text in figure.findobj(Text)]
        assert not any(math for text, math in texts)
        assert expected[:15] in " ".join(text for text, _ in texts), name
        for item in figure.legends:
            assert len(item.get_texts()) == 2, name


def test_names_of_folders_that_are_no_text_are_classes() -> None:
    figure = plot_partition(np.array([[1, 2]]), ["cat\udcff", "b"])
    assert [item.get_text() for item in figure.axes[0].get_yticklabels()] == ["cat?", "b"]
