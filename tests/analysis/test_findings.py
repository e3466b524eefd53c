"""Claims of the papers, judged by hand-made runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lit_fednas.analysis.findings import (
    MINUTES,
    RESULT_COLUMNS,
    Claim,
    Experiment,
    figure,
    judged,
    measured,
    read_experiment,
)
from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import FinetuneFiles
from tests.analysis.made_runs import made_run

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "configs/findings/experiments").glob("*.yaml"))
CLAIM = Claim("X", "Table 1", "more accurate", of=("new", "end"), over=("old", "end"), above=0.1)


def results(measure: str = "end", **values: dict[int, float]) -> pd.DataFrame:
    """Rows of a measure, by arm and seed."""
    rows = [("e", arm, seed, measure, value) for arm, own in values.items() for seed, value in own.items()]
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def judge(claim: Claim, table: pd.DataFrame) -> dict:
    (row,) = judged([Experiment("e", "", claims=[claim])], table).to_dict("records")
    return row


def test_effects_are_paired_by_seed() -> None:
    row = judge(CLAIM, results(new={0: 0.8, 1: 0.6, 2: 0.9}, old={1: 0.3, 0: 0.7}))  # old has no seed 2
    assert row["seeds"] == 2
    assert (row["effect"], row["low"], row["high"]) == pytest.approx((0.2, 0.1, 0.3))
    ratio = judge(replace(CLAIM, by="ratio"), results(new={0: 0.8, 1: 0.6}, old={1: 0.3, 0: 0.4}))
    assert (ratio["low"], ratio["high"]) == pytest.approx((2, 2))
    row = judge(CLAIM, results(MINUTES, new={0: 2.0}, old={0: 4.0}, other={0: 90.0}))
    assert row["minutes"] == 3  # those of the compared arms


RATIO = replace(CLAIM, by="ratio", above=1)


@pytest.mark.parametrize(
    ("claim", "new", "old", "verdict"),
    [
        (CLAIM, {0: 0.7, 1: 0.61}, {0: 0.5, 1: 0.5}, "seen"),
        (CLAIM, {0: 0.7, 1: 0.55}, {0: 0.5, 1: 0.5}, "not resolved"),
        (CLAIM, {0: 0.55, 1: 0.2}, {0: 0.5, 1: 0.5}, "not seen"),
        (RATIO, {0: 120, 1: 120}, {0: 120, 1: 120}, "not seen"),  # equal runs confirm nothing
        (CLAIM, {0: 1.0}, {}, "not run"),
        (replace(CLAIM, of=None, over=None), {}, {}, "needs the paper's scale"),
    ],
)
def test_a_claim_is_seen_where_all_seeds_show_it(claim, new, old, verdict) -> None:
    assert judge(claim, results(new=new, old=old))["verdict"] == verdict


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four rounds of two clients, each of 5 MACs; validated in three of them."""
    run = made_run(tmp_path / "run", {"val/accuracy": [0.1, None, 0.3, 0.5]}, macs=10)
    table = pd.DataFrame({"tier": ["1", "2", "2"], "test_accuracy": [0.9, 0.4, 0.6], "macs_per_example": [10, 5, 4]})
    table.to_csv(run.folder / "tiers.csv", index=False)
    return run


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({}, 0.5),
        ({"last": 2}, 0.4),
        ({"target": 0.3}, 3),
        ({"target": 0.9}, 4),  # never: its last round
        ({"macs": 35}, 0.3),  # ten per round
    ],
)
def test_figures_of_metrics(run, how, value) -> None:
    assert figure(run, metric="val/accuracy", **how) == pytest.approx(value)


def test_figures_of_tables_and_what_is_missing(run) -> None:
    assert figure(run, table="tiers.csv", column="test_accuracy", row={"tier": 2}) == pytest.approx(0.5)
    assert figure(run, table="tiers.csv", column="test_accuracy", share=0.5) == pytest.approx(0.4)
    experiment = Experiment(
        "e", "", measures={"a": {"metric": "none"}, "b": {"table": "none.csv"}, "c": {"ledger": "macs"}}
    )
    rows = measured(experiment, "arm", 0, run.folder, 1.5)
    assert rows.to_dict("records") == [dict(zip(RESULT_COLUMNS, ("e", "arm", 0, MINUTES, 1.5), strict=True))]


def test_the_figure_of_how_a_fine_tuning_ranks_its_candidates(run) -> None:
    """Eight of ten pairs are concordant."""
    files = FinetuneFiles(run.folder / "mine")
    files.write_settings({"initial": "supernet"})
    accuracies = [(0.1, 0.2), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.5, 0.4)]
    files.write("candidates", [{"val_accuracy_before": one, "test_accuracy": other} for one, other in accuracies])
    assert figure(run, tau="mine") == pytest.approx((8 - 2) / 10)
    assert math.isnan(figure(run, tau="other"))


def test_a_claim_names_an_arm_and_a_measure_that_exist(tmp_path: Path) -> None:
    content = {"protocol": "", "arms": {"new": ["fit"]}, "measures": {}}
    claims = [{"paper": "X", "where": "1", "claim": "big", "of": ["old", "minutes"]}]
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({**content, "claims": claims}))
    with pytest.raises(DataError, match="compares minutes of old"):
        read_experiment(tmp_path / "e.yaml")


def test_every_arm_was_run_with_the_seeds_that_its_file_names() -> None:
    kept = pd.read_csv(ROOT / "notebooks/findings.csv")
    experiments = {path.stem: read_experiment(path) for path in EXPERIMENTS}
    assert all("seed" in one.protocol and len(one.seeds) >= 2 and one.claims for one in experiments.values())
    assert not kept.duplicated(RESULT_COLUMNS[:4]).any()
    run = {(row.experiment, row.arm, row.seed) for row in kept[kept["measure"] == MINUTES].itertuples()}
    named = {(name, arm, seed) for name, one in experiments.items() for arm in one.arms for seed in one.seeds}
    assert run == named
    for name, measures in kept.groupby("experiment")["measure"]:
        assert set(measures) == {*experiments[name].measures, MINUTES}
    for (name, arm, measure), seeds in kept.groupby(["experiment", "arm", "measure"])["seed"]:
        assert sorted(seeds) == experiments[name].seeds, f"{name}: {measure} of {arm}"
