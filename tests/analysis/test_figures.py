"""What the figures draw, read back from their artists."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from lit_fednas.analysis import (
    SearchResult,
    fronts_figure,
    pareto_figure,
    progress_figure,
    read_run,
)
from lit_fednas.analysis.style import PALETTE, legend, look, new_figure


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    """Points by label; lines without one by their place."""
    return {str(line.get_label()): np.array(line.get_data()).T for line in figure.axes[panel].lines}


def searched(*points: tuple[float, float]) -> SearchResult:
    front = pd.DataFrame(points, columns=["macs", "accuracy"]).assign(tier="*")
    empty = pd.DataFrame(columns=["tier"])
    return SearchResult("search", {"cost": "macs"}, front, empty, front, empty, {})


def test_pareto_figure(finished_run: Path) -> None:
    search = read_run(finished_run).search()
    assert search is not None
    figure = pareto_figure(search)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "MACs per example (k)"
    assert axes.get_ylabel() == "validation accuracy"
    cloud = search.evaluations[["macs", "accuracy"]].to_numpy() / [1e3, 1]
    assert np.allclose(axes.collections[0].get_offsets(), cloud)
    drawn = lines(figure)
    stars = [line.get_data() for line in axes.lines if line.get_marker() == "*"]
    upright = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    for place, tier in enumerate(["small", "large"]):
        front = search.front[search.front["tier"] == tier]
        assert np.allclose(drawn[tier], front[["macs", "accuracy"]].to_numpy() / [1e3, 1])
        best = search.tiers[search.tiers["tier"] == tier].iloc[0]
        assert np.allclose(np.ravel(stars[place]), [best["macs"] / 1e3, best["val_accuracy"]])
        assert upright[place] == pytest.approx(search.limits(tier)[1] / 1e3)


def test_pareto_figure_of_a_search_that_has_just_begun(run_folder: Path) -> None:
    for name in ("history", "front", "tiers"):
        (run_folder / "search" / f"{name}.csv").unlink()
    search = read_run(run_folder).search()
    assert search is not None
    assert len(pareto_figure(search).axes[0].collections[0].get_offsets()) == 40


def test_pareto_figure_is_logarithmic_beyond_a_factor_of_twenty() -> None:
    figure = pareto_figure(searched((1e6, 0.5), (21e6, 0.6)))
    assert figure.axes[0].get_xscale() == "log"
    figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels(which="both") if tick.get_text()]
    assert {"1", "2", "5", "10", "20"} <= set(ticks)
    assert not any("10^" in tick for tick in ticks)
    assert pareto_figure(searched((1e6, 0.5), (20e6, 0.6))).axes[0].get_xscale() == "linear"


def test_fronts_compared_by_hand() -> None:
    figure = fronts_figure({"a": [searched((1, 0.2), (3, 0.6)), searched((2, 0.4))], "b": [searched((2, 0.9))]})
    drawn = lines(figure)
    assert drawn["a"].tolist() == [[2, pytest.approx(0.3)], [3, pytest.approx(0.5)]]  # where both have something
    assert drawn["b"].tolist() == [[2, 0.9], [3, 0.9]]
    (band,) = figure.axes[0].collections
    heights = {round(float(y), 6) for _, y in band.get_paths()[0].vertices}
    assert heights == {0.2, 0.4, 0.6}


def test_progress_figure(finished_run: Path) -> None:
    run = read_run(finished_run)
    both = [run.search(), run.search("random")]
    assert None not in both
    figure = progress_figure({"x": both, "y": both[:1]}, "small")  # type: ignore[dict-item]
    history = both[0].history[both[0].history["tier"] == "small"]  # type: ignore[union-attr]
    for panel, column in enumerate(["hypervolume", "best_accuracy"]):
        assert np.allclose(lines(figure, panel)["y"], history[["evaluations", column]])
        assert len(figure.axes[panel].collections) == 1  # a band for two seeds, none for one


def test_figures_leave_pyplot_alone(finished_run: Path) -> None:
    search = read_run(finished_run).search()
    assert search is not None
    matplotlib.get_backend()  # found at the first reading, which the comparison below is too
    before = matplotlib.rcParams.copy()
    for figure in (pareto_figure(search), progress_figure({"x": [search]}, "small")):
        figure.canvas.draw()
    assert pyplot.get_fignums() == []
    assert matplotlib.rcParams == before


def test_no_two_of_28_series_look_alike() -> None:
    assert len({tuple(look(place).values()) for place in range(4 * len(PALETTE))}) == 4 * len(PALETTE)


def test_equal_fronts_are_all_visible() -> None:
    """Those below are larger, also where only some points are shared."""
    points = [("a", 1, 0.2), ("a", 3, 0.6), ("b", 1, 0.2), ("b", 3, 0.6), ("c", 3, 0.6), ("c", 9, 0.8), ("d", 9, 0.9)]
    front = pd.DataFrame(points, columns=["tier", "macs", "accuracy"])
    settings = {"cost": "macs", "tiers": [{"name": name} for name in "abcd"]}
    best = front.groupby("tier").last().reset_index().rename(columns={"accuracy": "val_accuracy"})
    search = SearchResult("search", settings, front, front, front, best, {})
    drawn = {str(line.get_label()): line for line in pareto_figure(search).axes[0].lines}
    sizes = [drawn[name].get_markersize() for name in "abcd"]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[3] == sizes[0]
    assert drawn["a"].get_linewidth() < drawn["b"].get_linewidth() < drawn["c"].get_linewidth()
    assert drawn["a"].get_zorder() > drawn["b"].get_zorder() > drawn["c"].get_zorder()
    stars = [line for line in pareto_figure(search).axes[0].lines if line.get_marker() == "*"]
    assert [star.get_markersize() for star in stars[:3]] == sorted({star.get_markersize() for star in stars})


@pytest.mark.parametrize(
    ("panels", "count", "name"), [(1, 12, "tier {}"), (1, 9, "d: [0,1,0,{}], e: 0.14"), (2, 3, "{}")]
)
def test_a_legend_is_within_the_figure_and_covers_no_panel(panels: int, count: int, name: str) -> None:
    figure = new_figure(panels)
    for axes in figure.axes:
        for place in range(count):
            axes.plot([0, 1], [0, place], **look(place), label=name.format(place))
    legend(figure)
    figure.draw_without_rendering()
    (box,) = [one.get_window_extent() for one in figure.legends]
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert box.y0 >= 0
    assert box.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert min(axes.get_window_extent().height for axes in figure.axes) > 1.8 * figure.dpi  # of 3 inches
