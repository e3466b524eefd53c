"""Rounds to a target against values worked out by hand, and against what a run itself has written."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lit_fednas.analysis.methods import curves_figure, read_methods, read_metrics, validations
from lit_fednas.analysis.targets import (
    default_targets,
    target_markdown,
    target_table,
    validation_steps,
)
from lit_fednas.errors import DataError
from lit_fednas.records import append_round
from tests.analysis.made_runs import made_run, rounds_to_target, unpadded

SIMPLE = "val/simple/accuracy"


@pytest.mark.parametrize(("target", "rounds"), [(0.3, 2), (0.31, 4), (0.7, 6), (0.55, 6), (0.71, None)])
def test_the_first_validation_that_reaches_it(tmp_path: Path, target: float, rounds: int | None) -> None:
    # 0.7 as float32, which is less than 0.7; then it falls
    values = [None, 0.3, None, 0.5, None, float(np.float32(0.7)), None, 0.4]
    assert rounds_to_target(made_run(tmp_path / "a", {SIMPLE: values}), SIMPLE, target) == rounds


def test_an_unknown_metric_is_told_with_the_known_ones(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SIMPLE: [0.5], "val/x/accuracy": [None]})
    with pytest.raises(DataError, match=r"has not logged val/big/accuracy; choose from val/simple/accuracy$"):
        rounds_to_target(run, "val/big/accuracy", 0.5)


def test_costs_add_up_over_rounds_without_clients_too(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SIMPLE: [None, 0.5]})
    append_round(run.folder, {"round": 2, "metrics": {SIMPLE: 0.6}, "clients": []})
    append_round(run.folder, {"round": 3, "metrics": {SIMPLE: 0.6}, "clients": [{"client": 1, "macs": 7}]})
    table = validations(run, [SIMPLE])
    assert table["rounds"].tolist() == [2, 3, 4]
    assert table["macs"].tolist() == [200, 200, 207]
    assert table["bytes_down"].tolist() == [2000, 2000, 2000]
    assert table["bytes_up"].tolist() == [800, 800, 800]


@pytest.fixture
def methods(tmp_path: Path) -> dict:
    """A reaches 0.5 in rounds 2 and 4; B in round 6 and never; C in rounds 8 and 8."""
    never = [0.1] * 8
    return {
        "A": [
            made_run(tmp_path / "a0", {SIMPLE: [0.4, 0.5, *never[2:]]}),
            made_run(tmp_path / "a1", {SIMPLE: [0.1, 0.2, 0.3, 0.54, *never[4:]]}),
        ],
        "B": [
            made_run(tmp_path / "b0", {SIMPLE: [*never[:5], 0.5, 0.1, 0.1]}, macs=50),
            made_run(tmp_path / "b1", {SIMPLE: never}, macs=50),
        ],
        "C": [made_run(tmp_path / f"c{n}", {SIMPLE: [*never[:7], 0.9]}, macs=400) for n in (0, 1)],
    }


def test_the_table_of_runs(methods: dict) -> None:
    metrics = read_metrics([f"simple={SIMPLE}"], methods)
    table = target_table(methods, metrics, {"simple": [0.5]})
    assert table["rounds"].tolist() == [2, 4, 6, 8, 8, 8]
    assert table["reached"].tolist() == [True, True, True, False, True, True]
    assert table["macs"].tolist() == [200, 400, 300, 400, 3200, 3200]
    assert table["bytes_down"].tolist() == [2000, 4000, 3000, 4000, 32000, 32000]
    assert table["bytes_up"].tolist() == [800, 1600, 1200, 1600, 12800, 12800]
    assert table["method"].tolist() == ["A", "A", "B", "B", "C", "C"]


def test_the_markdown_shows_means_bounds_and_gains(methods: dict) -> None:
    metrics = read_metrics([f"simple={SIMPLE}"], methods)
    table = target_table(methods, metrics, {"simple": [0.54, 0.5]})
    head = ["| model | accuracy | A | B | C | gain |", "|:---|---:|---:|---:|---:|---:|"]
    assert unpadded(target_markdown(table)).splitlines() == [
        *head,
        "| simple | 54 % | > 6 (> 8, 4) | > 8 (> 8, > 8) | 8 (8, 8) | - |",
        "| simple | 50 % | 3 (2, 4) | > 7 (6, > 8) | 8 (8, 8) | > 2.3× |",  # 7 / 3
    ]
    assert unpadded(target_markdown(table, "macs")).splitlines()[3] == (
        "| simple | 50 % | 300 (200, 400) | > 350 (300, > 400) | 3.2 k (3.2 k, 3.2 k) | > 1.2× |"
    )
    assert unpadded(target_markdown(table, "bytes")).splitlines()[3].endswith("| 44.8 kB (44.8 kB, 44.8 kB) | > 1.2× |")
    best_last = pd.concat([table[table["method"] == method] for method in "ACB"])
    assert unpadded(target_markdown(best_last)).splitlines()[3].endswith("| 8 (8, 8) | > 7 (6, > 8) | > 2.3× |")
    without_b = table[table["method"] != "B"]
    assert unpadded(target_markdown(without_b)).splitlines()[3] == "| simple | 50 % | 3 (2, 4) | 8 (8, 8) | 2.7× |"
    alone = table[(table["method"] == "A") & (table["run"].str.endswith("a0"))]
    assert unpadded(target_markdown(alone)).splitlines()[2:] == [
        "| simple | 54 % | > 8 | - |",
        "| simple | 50 % | 2 | - |",
    ]


def test_what_was_not_counted_is_a_dash(tmp_path: Path) -> None:
    methods = {name: [made_run(tmp_path / name, {SIMPLE: [0.5]}, macs=None)] for name in "AB"}
    table = target_table(methods, read_metrics([f"simple={SIMPLE}"], methods), {"simple": [0.5]})
    assert unpadded(target_markdown(table, "macs")).splitlines()[2] == "| simple | 50 % | – | – | - |"
    assert unpadded(target_markdown(table)).splitlines()[2] == "| simple | 50 % | 1 | 1 | 1.0× |"


def test_default_targets_are_what_all_have_reached(tmp_path: Path) -> None:
    big = "val/big/accuracy"
    methods = {
        "A": [made_run(tmp_path / "a", {SIMPLE: [0.2, 0.5567, 0.3], big: [0.9, 0.9, 0.9]})],
        "B": [
            made_run(tmp_path / "b", {SIMPLE: [0.6, 0.5, 0.5], big: [0.004, 0.0, 0.0]}),
            made_run(tmp_path / "c", {SIMPLE: [0.1, 0.7, 0.7], big: [0.9, 0.9, 0.9]}),
        ],
    }
    metrics = read_metrics([f"simple={SIMPLE}", f"big={big}"], methods)
    targets = default_targets(methods, metrics)
    assert targets == {"simple": [0.556, 0.546], "big": [0.004]}
    assert target_table(methods, metrics, targets)["reached"].all()
    # 28 of 40 right, as float32
    exact = {"A": [made_run(tmp_path / "d", {SIMPLE: [float(np.float32(0.7))]})]}
    assert default_targets(exact, read_metrics([f"s={SIMPLE}"], exact)) == {"s": [0.7, 0.69]}
    nothing = {"A": [made_run(tmp_path / "e", {SIMPLE: [0.0]})]}
    with pytest.raises(DataError, match=r"simple stayed below 0\.1 %"):
        default_targets(nothing, read_metrics([f"simple={SIMPLE}"], nothing))


@pytest.mark.parametrize("target", [0.0, 50.0])
def test_targets_are_shares(methods: dict, target: float) -> None:
    with pytest.raises(DataError, match="must be above 0 and at most 1"):
        target_table(methods, read_metrics([f"s={SIMPLE}"], methods), {"s": [target]})


def test_how_often_it_was_validated(tmp_path: Path) -> None:
    every = {"A": [made_run(tmp_path / "a", {SIMPLE: [0.1, 0.2, 0.3]})]}
    second = {"B": [made_run(tmp_path / "b", {SIMPLE: [None, 0.2, None, 0.3]})]}
    metrics = read_metrics([f"s={SIMPLE}"], every | second)
    assert validation_steps(every, metrics) == ""
    assert validation_steps(second, metrics) == "Validated every 2 rounds."
    assert validation_steps(every | second, metrics) == ("Rounds from one validation to the next: 1 (A), 2 (B).")


def test_curves_are_means_with_a_band_from_least_to_greatest(tmp_path: Path) -> None:
    big = "val/big/accuracy"
    methods = {
        "A": [
            made_run(tmp_path / "a", {SIMPLE: [None, 0.2, None, 0.4], big: [None, 0.5, None, 0.5]}),
            made_run(tmp_path / "b", {SIMPLE: [0.9, 0.4, 0.9, 0.8, 0.9], big: [0.5] * 5}),
        ],
        "B": [made_run(tmp_path / "c", {SIMPLE: [0.1, 0.1], big: [0.1, 0.3]})],
    }
    figure = curves_figure(methods, read_metrics([f"simple={SIMPLE}", f"big={big}"], methods))
    assert [axes.get_title() for axes in figure.axes] == ["simple", "big"]
    assert {axes.get_ylabel() for axes in figure.axes} == {"validation accuracy (%)"}
    mean, other = figure.axes[0].get_lines()
    assert (mean.get_label(), other.get_label()) == ("A", "B")
    assert list(mean.get_xdata()) == [2, 4]  # where both were validated; rounds count from 1
    assert list(mean.get_ydata()) == pytest.approx([30, 60])
    assert list(other.get_ydata()) == pytest.approx([10, 10])
    (band,) = figure.axes[0].collections
    assert {round(y, 6) for y in band.get_paths()[0].vertices[:, 1]} == {20, 40, 80}
    tests = curves_figure({"T": [made_run(tmp_path / "t", {"test/a": [0.5]})]}, {"a": {"T": "test/a"}})
    assert tests.axes[0].get_ylabel() == "test accuracy (%)"


def test_runs_are_found_by_patterns(tmp_path: Path) -> None:
    for name, seed in (("a0/version_0", 0), ("a1/version_0", 1), ("b", 0), ("c/version_0", 3), ("c/version_1", 3)):
        made_run(tmp_path / name, {SIMPLE: [0.5]}, seed=seed)
    (tmp_path / "c" / "empty").mkdir()
    found = read_methods(
        [f"A={tmp_path}/a*/version_*", f"B={tmp_path}/b,{tmp_path}/a1,{tmp_path}/b", f"D={tmp_path}/a*"]
    )
    names = {name: [str(run.folder.relative_to(tmp_path)) for run in runs] for name, runs in found.items()}
    assert names == {
        "A": ["a0/version_0", "a1/version_0"],
        "B": ["b", "a1/version_0"],
        "D": ["a0/version_0", "a1/version_0"],
    }
    for words, said in (
        ([f"A={tmp_path}/x*"], "finds no run"),
        (["runs/a"], "is not of the form"),
        ([f"A={tmp_path}/b", f"A={tmp_path}/a0"], "A is duplicated"),
        ([f"C={tmp_path}/c"], "have the same seed 3"),
    ):
        with pytest.raises(DataError, match=said):
            read_methods(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simple"], "is not of the form"),
        (["C:simple=val/x"], "C is not a method; choose from A, B"),
        (["B:simple=val/x"], "simple: has no metric for A"),
    ],
)
def test_metrics_that_cannot_be_read(words: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_metrics(words, {"A": [], "B": []})


def test_a_real_run_is_read_as_it_was_told(finished_run: Path) -> None:
    (run,) = read_methods([f"A={finished_run}"])["A"]
    metric = "val/largest/accuracy"
    with open(finished_run / "metrics.csv", newline="") as file:
        logged = [float(row[metric]) for row in csv.DictReader(file) if row[metric]]
    best = max(logged)
    assert rounds_to_target(run, metric, best) == 1 + logged.index(best)
    assert rounds_to_target(run, metric, min(1.0, best + 0.01)) is None
    table = validations(run, [metric])
    assert run.ledger is not None
    assert table["macs"].iloc[-1] == run.ledger["total"]["macs"]
    pd.testing.assert_series_equal(table["rounds"], pd.Series([1, 2, 3]), check_names=False)
