"""How a network was pruned: tables of runs that can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import kept_units, sequence_of, sequence_table
from lit_fednas.errors import DataError
from lit_fednas.records import SEQUENCE_FILE, write_sequence
from tests.analysis.made_runs import made_run
from tests.analysis.made_sequences import made_sequence


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_sequence(tmp_path / "ours" / "version_0")


def test_costs_are_cumulated_per_client_without_the_initial_models(run: Run) -> None:
    """Iteration t costs t MB up of all ten clients, ten times as many down, and 1000 MACs per byte up."""
    table = sequence_table(run)
    assert table["up_mb"].tolist() == pytest.approx([0, 0.1, 0.3, 0.6])
    assert table["down_mb"].tolist() == pytest.approx([0, 1, 3, 6])
    assert table["client_macs"].tolist() == pytest.approx([0, 1e8, 3e8, 6e8])


def test_the_models(run: Run) -> None:
    table = sequence_table(run)
    assert table["number"].tolist() == [0, 1, 2, 3]
    assert table["round"].tolist() == [pd.NA, 1, 4, 8]
    assert table["unit"].tolist() == ["", "conv2", "fc", "conv2"]
    assert table["budget"].tolist()[1:] == [770, 620, 420]
    assert np.isnan(table["budget"][0])
    assert table["share"].tolist() == [1, 0.75, 0.6, 0.4]
    assert table["macs"].tolist() == [1000, 750, 600, 400]
    assert table["parameters"].tolist() == [100, 75, 60, 40]
    assert table["accuracy"].tolist() == [0.75, 0.7, 0.5, 0.625]
    assert table["rounds"].tolist() == [0, 2, 3, 4]
    assert table["candidates"].tolist() == [0, 2, 2, 2]


def test_shares_are_of_the_resource_that_budgets_limit(run: Run) -> None:
    sequence = {**sequence_of(run), "resource": "bytes", "initial": 400}
    for model in sequence["models"]:
        model["resource"] = model["bytes"]
    write_sequence(run.folder, sequence)
    assert sequence_table(run)["share"].tolist() == [1, 0.75, 0.6, 0.4]
    sequence["models"][3]["resource"] = 80
    write_sequence(run.folder, sequence)
    assert sequence_table(run)["share"].tolist() == [1, 0.75, 0.6, 0.2]


def test_without_a_sequence(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", {"val/x/accuracy": [0.1]})
    with pytest.raises(DataError, match=r"sequence\.json: is missing; only runs with .*PruneByBudgets"):
        sequence_table(run)


def test_what_is_left_of_the_layers(run: Run) -> None:
    kept = kept_units(run)
    assert list(kept.index) == ["conv1", "conv2", "fc"]
    assert kept.to_dict("list") == {0: [8, 16, 20], 1: [8, 12, 20], 2: [8, 12, 10], 3: [8, 4, 10]}


def test_a_unit_of_several_groups_is_several_layers(tmp_path: Path) -> None:
    run = made_sequence(tmp_path, units={"conv2": ["conv2.out"], "rest": ["fc.out", "conv1.out"]})
    assert list(kept_units(run).index) == ["conv2", "fc.out", "conv1.out"]
    assert kept_units(run)[3].tolist() == [4, 10, 8]


def test_the_made_run_is_as_its_record_says(run: Run) -> None:
    written = json.loads((run.folder / SEQUENCE_FILE).read_text())
    assert len(run.rounds) == 1 + written["models"][-1]["round"]
