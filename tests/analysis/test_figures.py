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
    Run,
    SearchResult,
    clients_figure,
    costs_figure,
    fronts_figure,
    pareto_figure,
    progress_figure,
    read_run,
    rounds_figure,
    subnets_figure,
)
from lit_fednas.analysis.style import PALETTE, look
from lit_fednas.records import append_round


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    """Points by label; lines without one by their place."""
    return {str(line.get_label()): np.array(line.get_data()).T for line in figure.axes[panel].lines}


def bands(figure: Figure) -> int:
    return sum(len(axes.collections) for axes in figure.axes)


def run_of(folder: Path, accuracies: list[float]) -> Run:
    for round, accuracy in enumerate(accuracies):
        append_round(folder, {"round": round, "metrics": {"val/a/accuracy": accuracy}})
    return Run(folder)


def searched(*points: tuple[float, float]) -> SearchResult:
    front = pd.DataFrame(points, columns=["macs", "accuracy"]).assign(tier="*")
    empty = pd.DataFrame()
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


def test_rounds_have_a_band_from_two_runs_on(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "1", [0.4, 0.6]), run_of(tmp_path / "2", [0.4, 0.8])]
    figure = rounds_figure(runs)
    assert lines(figure)["a"].tolist() == [[0, 0.4], [1, pytest.approx(0.7)]]
    assert bands(figure) == 1
    assert figure.axes[0].get_ylim() == pytest.approx((-0.02, 1.02))  # 0.7 +- 12.7 * 0.1 is cut
    assert bands(rounds_figure(runs[:1])) == 0
    assert figure.axes[0].get_xlabel() == "round"


def test_subnets_figure(finished_run: Path) -> None:
    run = read_run(finished_run)
    figure = subnets_figure({"a": [run], "b": [run, run]})
    table = run.subnets("val").sort_values("macs")
    assert np.allclose(lines(figure)["a"], table[["macs", "accuracy"]].to_numpy() / [1e3, 1])
    assert bands(figure) == 1


def test_costs_figure(finished_run: Path) -> None:
    run = read_run(finished_run)
    assert run.ledger is not None
    figure = costs_figure(run)
    drawn = lines(figure)
    alone = sum(cost["macs"] for cost in run.ledger["independent"].values())
    assert drawn["this run"][-1, 1] / drawn["subnets one by one"][0, 1] == pytest.approx(
        run.ledger["total"]["macs"] / alone
    )
    assert [axes.get_xlabel() for axes in figure.axes] == ["round", "round"]


@pytest.mark.parametrize(("clients", "boxes"), [(40, 40), (41, 1)])
def test_clients_have_a_box_each_up_to_forty(tmp_path: Path, clients: int, boxes: int) -> None:
    rows = [{"client": client, "loss": 1.0, "bytes_down": 1, "bytes_up": 1} for client in range(clients)]
    append_round(tmp_path, {"round": 0, "clients": rows})
    figure = clients_figure(Run(tmp_path))
    assert len(figure.axes[0].patches) == boxes
    assert len(figure.axes[0].get_xticklabels()) <= 13


def test_figures_leave_pyplot_alone(finished_run: Path) -> None:
    run = read_run(finished_run)
    before = matplotlib.rcParams.copy()
    for figure in (rounds_figure([run]), costs_figure(run), clients_figure(run)):
        figure.canvas.draw()
    assert pyplot.get_fignums() == []
    assert matplotlib.rcParams == before


def test_no_two_of_28_series_look_alike() -> None:
    assert len({tuple(look(place).values()) for place in range(4 * len(PALETTE))}) == 4 * len(PALETTE)
