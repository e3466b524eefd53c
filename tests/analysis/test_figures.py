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
from lit_fednas.analysis.style import PALETTE, look


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
    assert pareto_figure(searched((1e6, 0.5), (21e6, 0.6))).axes[0].get_xscale() == "log"
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
