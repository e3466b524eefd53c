"""The drawings of figures, read back from their artists."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lit_fednas.analysis import SearchResult, fronts_figure, pareto_figure, progress_figure, read_run
from lit_fednas.analysis.style import log_axis, new_figure
from notebooks.reproduction.results import draw_rows, means, spread_table


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    """Returns points by label, and those of unlabelled lines by number."""
    return {str(line.get_label()): np.array(line.get_data()).T for line in figure.axes[panel].lines}


def searched(*points: tuple[float, float]) -> SearchResult:
    """Returns a search with a front."""
    front = pd.DataFrame(points, columns=["macs", "accuracy"]).assign(tier="*")
    empty = pd.DataFrame(columns=["tier"])
    return SearchResult("search", {"cost": "macs"}, front, empty, front, empty, {})


def generations(*points: tuple[int, float], tier: str = "t") -> SearchResult:
    """Returns a search with a history."""
    history = pd.DataFrame(points, columns=["evaluations", "best_accuracy"])
    history = history.assign(tier=tier, generation=range(len(points)), hypervolume=history["best_accuracy"] / 2)
    nothing = pd.DataFrame()
    return SearchResult("search", {}, nothing, history, nothing, nothing, {})


def test_pareto_figure(finished_run: Path, run_folder: Path) -> None:
    search = read_run(finished_run).search()
    assert search is not None
    figure = pareto_figure(search)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("MACs per example (k)", "validation accuracy (%)")
    cloud = search.evaluations[["macs", "accuracy"]].to_numpy() / [1e3, 0.01]
    assert np.allclose(axes.collections[0].get_offsets(), cloud)
    stars = [line.get_data() for line in axes.lines if line.get_marker() == "*"]
    upright = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    for number, tier in enumerate(["small", "large"]):
        front = search.front[search.front["tier"] == tier]
        assert np.allclose(lines(figure)[tier], front[["macs", "accuracy"]].to_numpy() / [1e3, 0.01])
        best = search.tiers[search.tiers["tier"] == tier].iloc[0]
        assert np.allclose(np.ravel(stars[number]), [best["macs"] / 1e3, 100 * best["val_accuracy"]])
        assert upright[number] == pytest.approx(search.limits(tier)[1] / 1e3)
    for name in ("history", "front", "tiers"):  # a search that has just begun
        (run_folder / "search" / f"{name}.csv").unlink()
    started = pareto_figure(read_run(run_folder).search())
    assert np.allclose(started.axes[0].collections[0].get_offsets(), cloud)


def test_fronts_compared_by_hand() -> None:
    figure = fronts_figure({"a": [searched((1, 0.2), (3, 0.6)), searched((2, 0.4))], "b": [searched((2, 0.9))]})
    drawn_lines = lines(figure)
    assert drawn_lines["a"].tolist() == [
        [2, pytest.approx(30)],
        [3, pytest.approx(50)],
    ]  # begins at the first x of both
    assert drawn_lines["b"].tolist() == [[2, 90], [3, 90]]
    (band,) = figure.axes[0].collections
    heights = {round(float(y), 6) for _, y in band.get_paths()[0].vertices}
    assert heights == {20, 40, 60}


def test_progress_by_hand() -> None:
    """The last of several generations without new evaluations counts; a search without the tier is left out."""
    first_history, second_history = generations((2, 0.1), (2, 0.3), (4, 0.4)), generations((3, 0.5), (4, 0.5))
    other = generations((2, 0.1), tier="other")
    figure = progress_figure({"a": [first_history, second_history, other], "b": [first_history]}, "t")
    for axes, factor in zip(figure.axes, (0.5, 100), strict=True):
        mean, alone = axes.get_lines()
        assert mean.get_xydata().tolist() == [[x, pytest.approx(y * factor)] for x, y in ((3, 0.4), (4, 0.45))]
        assert alone.get_xydata().tolist() == [[2, 0.3 * factor], [4, 0.4 * factor]]
        assert len(axes.collections) == 1  # a band for two seeds, none for one
    assert progress_figure({"a": [other]}, "t").axes[0].get_lines()[0].get_xydata().size == 0


def test_measurements_with_their_spread(tmp_path: Path) -> None:
    """Tables keep the digits of the file; points are in their rows, and lines have the ends of the spreads."""
    path = tmp_path / "table.csv"
    head = "method,accuracy_percent,accuracy_percent_low,accuracy_percent_high,gb"
    path.write_text(f"{head}\nA,50.10,49.6,50.7,1.20\nB,40.0,,,\n")
    table = spread_table(path)
    assert list(table.columns) == ["method", "accuracy (%)", "GB"]
    assert table.to_numpy().tolist() == [["A", "50.10 (49.6 to 50.7)", "1.20"], ["B", "40.0", ""]]
    table = pd.read_csv(path, index_col="method")
    (axes,) = new_figure().axes
    draw_rows(axes, {"accuracy": means(table, "accuracy_percent"), "data": means(table, "gb")}, "x")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B"]
    accuracy, data = axes.containers
    assert accuracy.lines[0].get_xdata().tolist() == [50.1, 40.0]
    ends = accuracy.lines[2][0].get_segments()[0]
    assert ends[:, 0].tolist() == pytest.approx([49.6, 50.7])
    assert data.lines[0].get_xdata().tolist() == [1.2]


@pytest.mark.parametrize(
    ("lowest", "highest", "expected"), [(0.2, 20, "0.2 0.5 1 2 5 10 20"), (1, 1e8, "1 100 10000 1e+06 1e+08")]
)
def test_numbers_of_a_logarithmic_axis_do_not_overlap(lowest: float, highest: float, expected: str) -> None:
    figure = new_figure(2)
    axes = figure.axes[0]
    axes.plot([lowest, highest], [0, 1])
    log_axis(axes)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    labels = [label for label in axes.xaxis.get_ticklabels() if low <= label.get_position()[0] <= high]
    assert [label.get_text() for label in labels] == expected.split()
    boxes = [label.get_window_extent() for label in labels]
    assert all(box.x1 < next_box.x0 for box, next_box in itertools.pairwise(boxes))
