"""Claims of the papers, judged by hand-made runs."""

from __future__ import annotations

import json
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
    effects_figure,
    figure,
    judged,
    measured,
    read_experiment,
)
from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import ROUNDS_FILE, FinetuneFiles

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "configs/findings/experiments").glob("*.yaml"))
CLAIM = Claim("X", "Table 1", "more accurate", of=("new", "end"), over=("old", "end"), above=0.1)


def results(**values: dict[int, float]) -> pd.DataFrame:
    """Rows of the measure ``end``, by arm and seed."""
    rows = [("e", arm, seed, "end", value) for arm, own in values.items() for seed, value in own.items()]
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


@pytest.mark.parametrize(
    ("effects", "verdict"), [((0.2, 0.11), "seen"), ((0.2, 0.05), "not resolved"), ((0.05, -0.3), "not seen")]
)
def test_a_claim_is_seen_where_all_seeds_show_it(effects, verdict) -> None:
    row = judge(CLAIM, results(new={0: 0.5 + effects[0], 1: 0.5 + effects[1]}, old={0: 0.5, 1: 0.5}))
    assert row["verdict"] == verdict


def test_equal_runs_confirm_nothing() -> None:
    claim = replace(CLAIM, by="ratio", above=1)
    assert judge(claim, results(new={0: 120, 1: 120}, old={0: 120, 1: 120}))["verdict"] == "not seen"


def test_what_was_not_run_says_so() -> None:
    assert judge(CLAIM, results(new={0: 1.0}))["verdict"] == "not run"
    assert judge(replace(CLAIM, of=None, over=None), results())["verdict"] == "needs the paper's scale"


def test_minutes_are_those_of_the_compared_arms() -> None:
    rows = [("e", arm, 0, MINUTES, value) for arm, value in {"new": 2.0, "old": 4.0, "other": 90.0}.items()]
    row = judge(CLAIM, pd.DataFrame(rows, columns=RESULT_COLUMNS))
    assert row["minutes"] == 3


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four rounds of two clients, each of 5 MACs; validated in three of them."""
    accuracies = [0.1, None, 0.3, 0.5]
    with open(tmp_path / ROUNDS_FILE, "w") as file:
        for number, accuracy in enumerate(accuracies):
            clients = [{"client": one, "macs": 5, "bytes_down": 1, "bytes_up": 1} for one in range(2)]
            metrics = {} if accuracy is None else {"val/accuracy": accuracy}
            file.write(json.dumps({"round": number, "metrics": metrics, "clients": clients}) + "\n")
    table = pd.DataFrame({"tier": ["1", "2", "2"], "test_accuracy": [0.9, 0.4, 0.6], "macs_per_example": [10, 5, 4]})
    table.to_csv(tmp_path / "tiers.csv", index=False)
    return Run(tmp_path)


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


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_says_how_its_settings_were_chosen(path: Path) -> None:
    experiment = read_experiment(path)
    assert "seed" in experiment.protocol
    assert len(experiment.seeds) >= 2
    assert experiment.claims


def test_every_arm_was_run_with_the_seeds_that_its_file_names() -> None:
    kept = pd.read_csv(ROOT / "notebooks/findings.csv")
    experiments = {path.stem: read_experiment(path) for path in EXPERIMENTS}
    assert not kept.duplicated(RESULT_COLUMNS[:4]).any()
    run = {(row.experiment, row.arm, row.seed) for row in kept[kept["measure"] == MINUTES].itertuples()}
    named = {(name, arm, seed) for name, one in experiments.items() for arm in one.arms for seed in one.seeds}
    assert run == named
    for name, measures in kept.groupby("experiment")["measure"]:
        assert set(measures) == {*experiments[name].measures, MINUTES}
    for (name, arm, measure), seeds in kept.groupby(["experiment", "arm", "measure"])["seed"]:
        assert sorted(seeds) == experiments[name].seeds, f"{name}: {measure} of {arm}"


def test_a_figure_has_a_point_and_a_range_per_claim() -> None:
    table = judged([Experiment("e", "", claims=[CLAIM])], results(new={0: 0.8, 1: 0.9}, old={0: 0.5, 1: 0.4}))
    ranges, point, _ = effects_figure(table).axes[0].lines
    assert list(ranges.get_xdata()) == pytest.approx([0.3, 0.5])
    assert list(point.get_xdata()) == pytest.approx([0.4])
