"""Tables against values worked out by hand, and against what the run itself counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lit_fednas.analysis import Run, SearchResult, progress_figure, read_run
from lit_fednas.analysis.tables import (
    client_table,
    family_costs,
    independent_costs,
    stairs,
    subnet_metric,
    total_costs,
)
from lit_fednas.comparison import Result, comparison_table, methods_of, networks
from lit_fednas.records import append_round


def test_subnets_over_rounds(finished_run: Path) -> None:
    run = read_run(finished_run)
    table = subnet_metric(run)
    assert set(table) == {"smallest", "d0101-e0.14", "d1111-e0.18", "largest"}  # not the mean
    assert len(table) == 3
    assert table.loc[1, "largest"] == run.rounds["val/largest/accuracy"][1]


def test_rounds_without_validation_are_empty(tmp_path: Path) -> None:
    append_round(tmp_path, {"round": 0, "metrics": {"clients/loss": 1.0}})
    append_round(tmp_path, {"round": 1, "metrics": {"val/a/accuracy": 0.5, "val/mean/accuracy": 0.5}})
    table = subnet_metric(Run(tmp_path))
    assert list(table.columns) == ["a"]
    assert np.isnan(table.loc[0, "a"])
    assert table.loc[1, "a"] == 0.5


def test_total_costs_are_those_that_the_run_logged(finished_run: Path) -> None:
    run = read_run(finished_run)
    spent = total_costs(run)
    assert spent["total_macs"].tolist() == pytest.approx(run.rounds["cost/total_macs"].tolist(), rel=1e-6)
    assert spent["total_bytes"].tolist() == pytest.approx(run.rounds["cost/total_bytes"].tolist(), rel=1e-6)


def test_independent_costs(finished_run: Path) -> None:
    ledger = read_run(finished_run).ledger
    assert ledger is not None
    table = independent_costs(ledger).set_index("training")
    assert table.index.tolist() == ["this run", *ledger["independent"], "one by one"]
    assert table.loc["this run", ["times_macs", "times_bytes"]].tolist() == [1, 1]
    assert table.loc["this run", "bytes"] == ledger["total"]["bytes_down"] + ledger["total"]["bytes_up"]
    assert table.loc["one by one", "times_macs"] == pytest.approx(ledger["times_less_computation"])
    assert table.loc["one by one", "times_bytes"] == pytest.approx(ledger["times_less_communication"])


def test_a_familys_costs_by_hand() -> None:
    """From the largest down, whatever the order of the ledger."""
    alone = {"small": (10, 1, 1), "largest": (60, 8, 8), "middle": (30, 3, 2)}
    names = ("macs", "bytes_down", "bytes_up")
    costs = {name: dict(zip(names, values, strict=True)) for name, values in alone.items()}
    table = family_costs({"total": dict(zip(names, (40, 5, 5), strict=True)), "independent": costs})
    assert table.index.tolist() == [1, 2, 3]
    assert table["macs"].tolist() == [60, 90, 100]
    assert table["bytes"].tolist() == [16, 21, 23]
    assert table["times_macs"].tolist() == pytest.approx([1.5, 2.25, 2.5])
    assert table["times_bytes"].tolist() == pytest.approx([1.6, 2.1, 2.3])


def test_clients_by_hand(tmp_path: Path) -> None:
    did = {"num_examples": 20, "macs": 100, "bytes_down": 8, "bytes_up": 8}
    good = {"client": 3, "status": "ok", "loss": 2.0, **did}
    bad = {**good, "client": 1, "status": "error", "loss": None, "bytes_up": 0}
    append_round(tmp_path, {"round": 0, "clients": [good, bad]})
    append_round(tmp_path, {"round": 1, "clients": [{**good, "loss": 1.0}]})
    append_round(tmp_path, {"round": 2, "clients": []})
    first, second = client_table(Run(tmp_path)).to_dict("records")
    assert second == {
        "client": 3,
        "examples": 20,
        "rounds": 2,
        "failed": 0,
        "loss": 1.5,
        "last_loss": 1.0,
        "macs": 200,
        "share": pytest.approx(2 / 3),
        "bytes": 32,
    }
    assert (first["client"], first["failed"], first["bytes"]) == (1, 1, 8)
    assert np.isnan(first["loss"])


def search(*points: tuple[int, float], tier: str = "t") -> SearchResult:
    history = pd.DataFrame(points, columns=["evaluations", "best_accuracy"])
    history = history.assign(tier=tier, generation=range(len(points)), hypervolume=history["best_accuracy"] / 2)
    empty = pd.DataFrame()
    return SearchResult("search", {}, empty, history, empty, empty, {})


def test_stairs_by_hand() -> None:
    left = pd.Series({2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4})
    reached = stairs([left, pd.Series({3: 0.5, 7: 0.7})])
    assert reached.index.tolist() == [3, 4, 6, 7]  # where both have begun and none has ended
    assert reached.to_numpy().tolist() == [[0.1, 0.5], [0.2, 0.5], [0.3, 0.5], [0.3, 0.7]]
    assert stairs([left]).index.tolist() == [2, 4, 6, 8]
    assert stairs([left], [0, 3, 9]).to_dict() == {0: {3: 0.1, 9: 0.4}}


def test_progress_by_hand() -> None:
    """Of generations without anything new the last one counts; a search without the tier is left out."""
    left, right = search((2, 0.1), (2, 0.3), (4, 0.4)), search((3, 0.5))
    figure = progress_figure({"a": [left, right, search((2, 0.1), tier="other")], "b": [left]}, "t")
    for axes, factor in zip(figure.axes, (0.5, 1), strict=True):
        mean, alone = axes.get_lines()
        assert mean.get_xydata().tolist() == [[3, pytest.approx(0.4 * factor)]]
        assert alone.get_xydata().tolist() == [[2, 0.3 * factor], [4, 0.4 * factor]]
    assert progress_figure({"a": [search((2, 0.1), tier="other")]}, "t").axes[0].get_lines()[0].get_xydata().size == 0


def test_a_real_runs_costs_are_those_of_its_ledger(finished_run: Path) -> None:
    run = read_run(finished_run)
    total = json.loads((finished_run / "ledger.json").read_text())["total"]
    table = comparison_table(methods_of({"x": [finished_run]}), {"*": {}})
    assert table["spent_macs"].tolist() == [total["macs"]]
    assert table["spent_bytes"].tolist() == [total["bytes_down"] + total["bytes_up"]]
    assert table["rounds"].tolist() == [len(run.rounds)]
    assert table["val"].item() == networks(Result(run))["val"].max()
