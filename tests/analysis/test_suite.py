"""How a suite grew, from runs whose figures can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, look
from lit_fednas.analysis.suite import (
    ALL_CLIENTS,
    clients_figure,
    loss_figure,
    model_clients,
    model_losses,
    round_ticks,
    shortened,
    suite_table,
    suite_text,
    tree_figure,
)
from lit_fednas.errors import DataError
from tests.analysis.made_suites import made_suite


def client(number: int, model: str, loss: float | None, seen: int = 10, **further: Any) -> dict[str, Any]:
    return {"client": number, "arch": f"model: {model}", "loss": loss, "num_seen": seen, **further}


#: Model 1 is added in round 1, model 2 in round 2; two clients fail.
ROUNDS = [
    [client(0, "0", 4.0, 10), client(1, "0", 1.0, 30)],
    [client(0, "0", 2.0), client(2, "0", None, 0, status="error")],
    [client(0, "1", 1.0, 10), client(1, "0", 3.0, 10), client(3, "1", 4.0, 20)],
    [client(1, "2", 0.5, 10), client(2, "1", None, 0, status="non-finite")],
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_suite(tmp_path / "grown" / "version_0", rounds=ROUNDS)


def test_losses_are_weighted_by_the_examples(run: Run) -> None:
    losses = model_losses(run)
    nan = float("nan")
    expected = {
        "model 0": [(40 + 30) / 40, 2.0, 3.0, nan],
        "model 1": [nan, nan, (10 + 80) / 30, nan],
        "model 2": [nan, nan, nan, 0.5],
        ALL_CLIENTS: [70 / 40, 2.0, (10 + 30 + 80) / 40, 0.5],
    }
    pd.testing.assert_frame_equal(losses, pd.DataFrame(expected), check_index_type=False, check_names=False)


def test_a_window_averages_over_the_rounds_before(run: Run) -> None:
    losses = model_losses(run, window=2)
    assert losses["model 0"].tolist() == pytest.approx([70 / 40, 90 / 50, 50 / 20, 3.0])
    assert losses["model 1"].tolist()[2:] == pytest.approx([3.0, 3.0])
    counts = model_clients(run, window=2)
    assert counts["model 0"].tolist() == [2.0, 1.5, 1.0, 0.5]


def test_clients_of_each_model_are_those_that_ended(run: Run) -> None:
    assert model_clients(run).to_dict("list") == {
        "model 0": [2, 1, 1, 0],
        "model 1": [0, 0, 2, 0],
        "model 2": [0, 0, 0, 1],
    }


def test_models_come_by_number_and_combinations_by_themselves(tmp_path: Path) -> None:
    rounds = [[client(0, "10", 1.0), client(1, "2", 2.0), client(2, "0,2", 4.0), client(3, "0", 3.0)]]
    run = made_suite(tmp_path, [(None, None, 10, [])] * 11, rounds)
    assert model_losses(run).columns.tolist() == ["model 0", "model 0,2", "model 2", "model 10", ALL_CLIENTS]
    assert suite_table(run).set_index("number").loc[[0, 2, 10], "clients"].tolist() == [2, 2, 1]


def test_other_architectures_are_no_models(tmp_path: Path) -> None:
    run = made_suite(tmp_path, rounds=[[{**client(0, "0", 1.0), "arch": "width: 1"}, client(1, "0", 2.0)]])
    assert model_losses(run).to_dict("list") == {"model 0": [2.0], ALL_CLIENTS: [2.0]}


def test_the_table(run: Run) -> None:
    table = suite_table(run)
    assert table["number"].tolist() == [0, 1, 2]
    assert table["parent"].tolist() == [pd.NA, 0, 1]
    assert table["round"].tolist() == [pd.NA, 1, 2]
    assert table["macs"].tolist() == [1000, 2500, 6_000_000]
    assert table["parameters"].tolist() == [100, 250, 600_000]
    assert table["bytes"].tolist() == [400, 1000, 2_400_000]
    assert table["clients"].tolist() == [2, 2, 1]  # model 0: clients 0 and 1
    assert table["trainings"].tolist() == [4, 2, 1]
    assert table["done"].tolist() == ["", "widen conv1", "widen conv1; deepen conv2"]


def test_as_text(run: Run) -> None:
    lines = suite_text(suite_table(run)).splitlines()
    assert lines[1].split() == ["0", "–", "–", "1", "k", "100", "400", "B", "2", "4", "–"]
    assert lines[3].split()[:6] == ["2", "1", "2", "6", "M", "600"]
    assert lines[3].endswith("widen conv1; deepen conv2")


def test_the_loss_figure(run: Run) -> None:
    axes = loss_figure(run).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert list(lines) == [ALL_CLIENTS, "model 0", "model 1", "model 2"]
    assert lines["model 0"].get_xydata().tolist() == [[0, 1.75], [1, 2.0], [2, 3.0]]
    assert lines["model 2"].get_xydata().tolist() == [[3, 0.5]]
    assert lines[ALL_CLIENTS].get_ydata().tolist() == [1.75, 2.0, 3.0, 0.5]
    assert lines[ALL_CLIENTS].get_color() == GREY
    assert lines[ALL_CLIENTS].get_linewidth() > 2 * lines["model 0"].get_linewidth()
    uprights = [line.get_xdata()[0] for line in axes.get_lines() if line.get_label().startswith("_")]
    assert uprights == [1, 2]
    marks = {text.get_text(): (text.xy[0], text.get_color()) for text in axes.texts}
    assert marks == {"+1": (1, look(1)["color"]), "+2": (2, look(2)["color"])}
    assert lines["model 1"].get_color() == look(1)["color"]


def test_numbers_of_transformations_that_are_close_do_not_touch(tmp_path: Path) -> None:
    rounds = [[client(0, "0", 1.0)]] * 101
    grown = [(None, None, 10, []), *((0, at, 20, []) for at in (10, 11, 12, 30))]
    figure = loss_figure(made_suite(tmp_path, grown, rounds))
    heights = [text.xyann[1] for text in figure.axes[0].texts]
    assert len(set(heights[:3])) == 3
    assert heights[3] == heights[0]
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_the_window_grows_with_the_rounds_and_is_told(tmp_path: Path) -> None:
    run = made_suite(tmp_path, rounds=[[client(0, "0", 1.0)]] * 100)
    assert loss_figure(run).axes[0].get_ylabel() == "training loss (mean of 2 rounds)"
    assert loss_figure(run, 1).axes[0].get_ylabel() == "training loss"
    assert clients_figure(run).axes[0].get_ylabel() == "clients (mean of 5 rounds)"


def test_the_clients_figure_is_stacked(run: Run) -> None:
    figure = clients_figure(run)
    areas = {area.get_label(): area for area in figure.axes[0].collections}
    assert list(areas) == ["model 0", "model 1", "model 2"]
    tops = [float(area.get_paths()[0].vertices[:, 1].max()) for area in areas.values()]
    assert tops == [2, 3, 3]  # in round 2: one, two more, nobody more
    assert figure.axes[0].get_ylim()[0] == 0


def test_areas_of_one_colour_differ(tmp_path: Path) -> None:
    rounds = [[client(number, str(number), 1.0) for number in range(8)]] * 3
    areas = clients_figure(made_suite(tmp_path, [(None, None, 10, [])] * 8, rounds)).axes[0].collections
    assert np.array_equal(areas[0].get_facecolor(), areas[7].get_facecolor())
    assert (areas[0].get_hatch(), areas[7].get_hatch()) != (None, None)


def test_the_tree(run: Run) -> None:
    axes = tree_figure(run).axes[0]
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    edges, nodes = [line for line in lines if len(line) > 1], [line[0] for line in lines if len(line) == 1]
    assert nodes == [[1000, 0], [2500, 1], [6_000_000, 2]]
    assert edges == [
        [[1000, 0], [1000, 1], [2500, 1]],
        [[2500, 1], [2500, 2], [6_000_000, 2]],
    ]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["start", "round 1", "round 2"]
    low, high = axes.get_ylim()
    assert low > high  # the first is above
    texts = [text.get_text() for text in axes.texts]
    assert texts[:3] == ["0", "1 k MACs, 100 parameters", "initial model"]
    assert texts[6:] == ["2", "6 M MACs, 600 k parameters", "widen conv1; deepen conv2"]


@pytest.mark.parametrize("count", [1, 8, 30])
def test_nothing_in_a_tree_touches(tmp_path: Path, count: int) -> None:
    steps = [{"widen": f"block{place}", "sizes": {}} for place in range(9)]
    chain = [(None, None, 1000, []), *((n, 7 * n, 1000 * 2**n, steps) for n in range(count - 1))]
    figure = tree_figure(made_suite(tmp_path, chain))
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if not text.get_text().isdigit()]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    assert len(boxes) == 2 * count
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert max(len(text.get_text()) for text in texts) <= 44


def test_a_suite_that_nobody_has_trained_yet(tmp_path: Path) -> None:
    run = made_suite(tmp_path, [(None, None, 10, [])])
    assert suite_table(run)["trainings"].tolist() == [0]
    assert model_losses(run).empty
    for draw in (loss_figure, clients_figure, tree_figure):
        draw(run).draw_without_rendering()


@pytest.mark.parametrize("made", [suite_table, loss_figure, tree_figure, clients_figure])
def test_a_run_without_a_suite(tmp_path: Path, made: Any) -> None:
    with pytest.raises(DataError, match=r"suite\.json: is not there"):
        made(Run(tmp_path))


@pytest.mark.parametrize("most", [3, 5])
@pytest.mark.parametrize(("low", "high"), [(1, 2), (3.1e6, 3.2e6), (700, 9e9), (90, 110), (5e5, 5e7), (1, 1e30)])
def test_round_ticks_lie_within_and_are_few(low: float, high: float, most: int) -> None:
    found = round_ticks(low, high, most)
    assert 1 <= len(found) <= most
    assert all(low <= tick <= high for tick in found)
    assert found == sorted(set(found))


def test_shortened() -> None:
    assert shortened("widen conv1", 11) == "widen conv1"
    assert shortened("widen conv1; deepen", 13) == "widen conv1…"
