"""The runs of a sweep beside each other; the runs are written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from lit_fednas.errors import DataError
from lit_fednas.studies.results import compare, read_sweep, sweep_figure
from lit_fednas.studies.runs import STUDY_FILE
from tests.analysis.made_runs import made_run

LR, DECAY = "model.lr", "beta_decay.decay"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two learning rates, two decays, two seeds; one of the eight failed and one never began."""
    runs = []
    every = [(lr, decay, seed) for lr in (0.1, 0.01) for decay in ("linear", "cosine") for seed in (0, 1)]
    for place, (lr, decay, seed) in enumerate(every):
        name = f"lr={lr},decay={decay}/seed{seed}"
        status = {0: "failed", 7: "waiting"}.get(place, "finished")
        if status != "waiting":
            largest = [0.2, None] if place == 0 else [0.1, (place + 1) / 10, None]
            losses = [1 / (number + 1) for number in range(len(largest))]
            halves = [accuracy and accuracy / 2 for accuracy in largest]
            values = {"clients/loss": losses, "val/largest/accuracy": largest, "val/smallest/accuracy": halves}
            made_run(tmp_path / name, values, seed=seed)
        parameters = {LR: lr, DECAY: decay}
        runs.append({"parameters": parameters, "seed": seed, "folder": name, "status": status, "command": []})
    (tmp_path / STUDY_FILE).write_text(json.dumps({"sweep": "s", "file": "s.yaml", "runs": runs}))
    return tmp_path


def test_a_sweep_is_a_row_per_run(sweep: Path) -> None:
    table = read_sweep(sweep)
    own = ["seed", "status", "rounds", "folder"]
    metrics = ["clients/loss", "val/largest/accuracy", "val/smallest/accuracy"]
    assert list(table.columns) == [LR, DECAY, *own, *metrics]
    assert list(table["rounds"]) == [2, 3, 3, 3, 3, 3, 3, 0]
    assert list(table["val/largest/accuracy"][:7]) == [0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert table["clients/loss"][1] == 1 / 3  # the last of all, not that of the last validation
    assert table.iloc[7][metrics].isna().all()
    assert list(table.iloc[2][[LR, DECAY, *own]]) == [0.1, "cosine", 0, "finished", 3, "lr=0.1,decay=cosine/seed0"]


def test_combinations_are_compared_over_the_seeds_that_finished(sweep: Path) -> None:
    table = compare(read_sweep(sweep))
    assert table.head == ["lr", "decay", "seeds", "smallest/accuracy", "largest/accuracy"]
    assert table.body == [
        ["0.1", "linear", "1", "10.00", "20.00"],
        ["0.1", "cosine", "2", "17.50 (15.00 to 20.00)", "35.00 (30.00 to 40.00)"],
        ["0.01", "linear", "2", "27.50 (25.00 to 30.00)", "55.00 (50.00 to 60.00)"],
        ["0.01", "cosine", "1", "35.00", "70.00"],
    ]


def test_the_figure_has_a_panel_per_parameter_with_means_ranges_and_points(sweep: Path) -> None:
    rates, decays = sweep_figure(read_sweep(sweep)).axes
    assert (rates.get_xlabel(), decays.get_xlabel()) == (LR, DECAY)
    assert [text.get_text() for text in rates.get_xticklabels()] == ["0.01", "0.1"]
    means = {str(line.get_label()): list(line.get_ydata()) for line in rates.get_lines()}
    assert means["smallest"] == pytest.approx([0.3, 0.15])
    assert means["largest"] == pytest.approx([0.6, 0.3])  # (0.5 + 0.6 + 0.7) / 3, (0.2 + 0.3 + 0.4) / 3
    _, ranges = (one for one in rates.collections if isinstance(one, LineCollection))
    np.testing.assert_allclose(np.array(ranges.get_segments())[:, :, 1], [[0.5, 0.7], [0.2, 0.4]])
    points = [line for line in rates.get_lines() if line.get_marker() == "."]
    assert sorted(y for line in points[1:] for y in line.get_ydata()) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert {line.get_linestyle() for line in decays.get_lines()} == {"None"}  # linear and cosine have no order


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, sweep: Path) -> None:
    table = read_sweep(sweep)
    for call, message in (
        (lambda: read_sweep(tmp_path / "nowhere"), r"holds no study\.json"),
        (lambda: compare(table[["seed", "status"]]), "no run logged val/smallest/accuracy, val/mean/acc.*, val/larg"),
        (lambda: compare(table[:1]), "none of 1 runs has finished"),
        (lambda: sweep_figure(table[1:2]), "do not differ"),
    ):
        with pytest.raises(DataError, match=message):
            call()
