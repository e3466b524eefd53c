"""Tables of growing suites and pruned sequences, against values by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_fednas.analysis import Run
from lit_fednas.analysis.report.model_sections import kept_units, sequence_table, suite_table
from lit_fednas.records.run import SEQUENCE_FILE, SUITE_FILE, read_models
from tests.analysis.made_runs import made_sequence, made_suite


def client(number: int, model: str, loss: float | None, seen: int = 10, **values: Any) -> dict[str, Any]:
    return {"client": number, "arch": f"model: {model}", "loss": loss, "num_units": seen, **values}


#: Model 1 is added in round 1, model 2 in round 2; two clients fail.
ROUNDS = [
    [client(0, "0", 4.0, 10), client(1, "0", 1.0, 30)],
    [client(0, "0", 2.0), client(2, "0", None, 0, status="error")],
    [client(0, "1", 1.0, 10), client(1, "0", 3.0, 10), client(3, "1", 4.0, 20)],
    [client(1, "2", 0.5, 10), client(2, "1", None, 0, status="non-finite")],
]


@pytest.fixture
def grown(tmp_path: Path) -> Run:
    return made_suite(tmp_path / "grown" / "version_0", rounds=ROUNDS)


@pytest.fixture
def pruned(tmp_path: Path) -> Run:
    return made_sequence(tmp_path / "pruned" / "version_0")


def test_the_models_of_a_suite(grown: Run, tmp_path: Path) -> None:
    columns = ["model", "from", "round", "macs", "parameters", "bytes", "clients", "trainings", "derivation"]
    assert suite_table(grown, read_models(grown.folder, SUITE_FILE)["models"]).frame[columns].astype(object).fillna(
        ""
    ).to_numpy().tolist() == [
        [0, "", "", 1000, 100, 400, 2, 4, ""],  # clients 0 and 1 trained it
        [1, 0, 1, 2500, 250, 1000, 2, 2, "widen conv1"],
        [2, 1, 2, 6_000_000, 600_000, 2_400_000, 1, 1, "widen conv1; deepen conv2"],
    ]
    untrained = made_suite(tmp_path, [(None, None, 10, [])])
    assert suite_table(untrained, read_models(tmp_path, SUITE_FILE)["models"]).frame["trainings"].tolist() == [0]


def test_the_models_of_a_sequence(pruned: Run) -> None:
    """Costs per client are cumulative, without the initial model's.

    Iteration t costs t MB up of all ten clients, ten times as many down, and 1000 MACs per byte up.
    """
    table = sequence_table(read_models(pruned.folder, SEQUENCE_FILE))
    columns = ["number", "round", "unit", "budget", "share", "parameters", "accuracy", "rounds", "candidates"]
    assert table[columns].astype(object).fillna("").to_numpy().tolist() == [
        [0, "", "", "", 1, 100, 0.75, 0, 0],
        [1, 1, "conv2", 770, 0.75, 75, 0.7, 2, 2],
        [2, 4, "fc", 620, 0.6, 60, 0.5, 3, 2],
        [3, 8, "conv2", 420, 0.4, 40, 0.625, 4, 2],
    ]
    spent = table[["bytes_up", "bytes_down", "macs_of_a_client"]].T
    np.testing.assert_allclose(spent, [[0, 1e5, 3e5, 6e5], [0, 1e6, 3e6, 6e6], [0, 1e8, 3e8, 6e8]])


def test_the_remaining_units_of_layers(pruned: Run, tmp_path: Path) -> None:
    units = kept_units(read_models(pruned.folder, SEQUENCE_FILE))
    assert list(units.index) == ["conv1", "conv2", "fc"]
    assert units.to_dict("list") == {0: [8, 16, 20], 1: [8, 12, 20], 2: [8, 12, 10], 3: [8, 4, 10]}
    run = made_sequence(tmp_path, units={"conv2": ["conv2.out"], "rest": ["fc.out", "conv1.out"]})
    assert kept_units(read_models(run.folder, SEQUENCE_FILE))[3].to_dict() == {
        "conv2": 4,
        "fc.out": 10,
        "conv1.out": 8,
    }  # a unit of several groups has a row per group
