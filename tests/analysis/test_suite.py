"""How a suite grew, from runs whose figures can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.suite import (
    ALL_CLIENTS,
    model_rounds,
    suite_table,
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
    losses, _ = model_rounds(run)
    nan = float("nan")
    expected = {
        "model 0": [(40 + 30) / 40, 2.0, 3.0, nan],
        "model 1": [nan, nan, (10 + 80) / 30, nan],
        "model 2": [nan, nan, nan, 0.5],
        ALL_CLIENTS: [70 / 40, 2.0, (10 + 30 + 80) / 40, 0.5],
    }
    pd.testing.assert_frame_equal(losses, pd.DataFrame(expected), check_index_type=False, check_names=False)


def test_a_window_averages_over_the_rounds_before(run: Run) -> None:
    losses, counts = model_rounds(run, window=2)
    assert losses["model 0"].tolist() == pytest.approx([70 / 40, 90 / 50, 50 / 20, 3.0])
    assert losses["model 1"].tolist()[2:] == pytest.approx([3.0, 3.0])
    assert counts["model 0"].tolist() == [2.0, 1.5, 1.0, 0.5]


def test_clients_of_each_model_are_those_that_ended(run: Run) -> None:
    assert model_rounds(run)[1].to_dict("list") == {
        "model 0": [2, 1, 1, 0],
        "model 1": [0, 0, 2, 0],
        "model 2": [0, 0, 0, 1],
    }


def test_models_come_by_number_and_combinations_by_themselves(tmp_path: Path) -> None:
    rounds = [[client(0, "10", 1.0), client(1, "2", 2.0), client(2, "0,2", 4.0), client(3, "0", 3.0)]]
    run = made_suite(tmp_path, [(None, None, 10, [])] * 11, rounds)
    assert model_rounds(run)[0].columns.tolist() == ["model 0", "model 0,2", "model 2", "model 10", ALL_CLIENTS]
    assert suite_table(run).set_index("number").loc[[0, 2, 10], "clients"].tolist() == [2, 2, 1]


def test_other_architectures_are_no_models(tmp_path: Path) -> None:
    run = made_suite(tmp_path, rounds=[[{**client(0, "0", 1.0), "arch": "width: 1"}, client(1, "0", 2.0)]])
    assert model_rounds(run)[0].to_dict("list") == {"model 0": [2.0], ALL_CLIENTS: [2.0]}


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


def test_a_suite_that_nobody_has_trained_yet(tmp_path: Path) -> None:
    run = made_suite(tmp_path, [(None, None, 10, [])])
    assert suite_table(run)["trainings"].tolist() == [0]
    assert model_rounds(run)[0].empty


def test_a_run_without_a_suite(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"suite\.json: is missing"):
        suite_table(Run(tmp_path))
