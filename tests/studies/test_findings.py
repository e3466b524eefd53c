"""Verdicts on claims, from handmade runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.analysis import Run
from lit_fednas.cli import main
from lit_fednas.records import FinetuneFiles
from lit_fednas.studies import RESULT_COLUMNS, Claim, Study, figure, judged, measured
from lit_fednas.studies.findings import MINUTES
from tests.analysis.made_runs import ROW, SETTINGS, made_run
from tests.studies.conftest import calls
from tests.studies.test_presets import STUDIES
from tests.studies.test_presets import kept as kept_study

ROOT = Path(__file__).parents[2]
CLAIM = Claim("X", "Table 1", "more accurate", ("new", "end"), ("old", "end"), above=0.1)


def results(measure: str = "end", **values: dict[int, float]) -> pd.DataFrame:
    """Returns the rows of a measure by arm and seed."""
    rows = [("e", arm, seed, measure, value) for arm, by_seed in values.items() for seed, value in by_seed.items()]
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def judge(claim: Claim, table: pd.DataFrame) -> dict:
    (row,) = judged([Study("e", claims=[claim])], table).to_dict("records")
    return row


def test_effects_are_paired_by_seed() -> None:
    row = judge(CLAIM, results(new={0: 0.8, 1: 0.6, 2: 0.9}, old={1: 0.3, 0: 0.7}))  # old has no seed 2
    assert row["seeds"] == 2
    half = 12.7062 * 0.1  # two seeds: Student's t with one degree of freedom
    assert (row["effect"], row["low"], row["high"]) == pytest.approx((0.2, 0.2 - half, 0.2 + half), rel=1e-4)
    ratio = judge(replace(CLAIM, effect="ratio"), results(new={0: 0.8, 1: 0.6}, old={1: 0.3, 0: 0.4}))
    assert (ratio["low"], ratio["high"]) == pytest.approx((2, 2))
    row = judge(CLAIM, results(MINUTES, new={0: 2.0}, old={0: 4.0}, other={0: 90.0}))
    assert row["minutes"] == 3  # the mean of the compared arms


RATIO = replace(CLAIM, effect="ratio", above=1)


@pytest.mark.parametrize(
    ("claim", "new", "old", "verdict"),
    [
        (CLAIM, {0: 0.7, 1: 0.71, 2: 0.72}, {0: 0.5, 1: 0.5, 2: 0.5}, "seen"),
        (CLAIM, {0: 0.7, 1: 0.61, 2: 0.65}, {0: 0.5, 1: 0.5, 2: 0.5}, "not resolved"),  # a wide interval
        (CLAIM, {0: 0.52, 1: 0.5, 2: 0.51}, {0: 0.5, 1: 0.5, 2: 0.5}, "not seen"),
        (CLAIM, {0: 0.7}, {0: 0.5}, "not resolved"),  # one seed has no interval
        (CLAIM, dict.fromkeys(range(9), 0.51) | {9: 0.9}, dict.fromkeys(range(10), 0.5), "undecided"),  # ten seeds
        (CLAIM, dict.fromkeys(range(8), 0.51) | {9: 0.9}, dict.fromkeys(range(10), 0.5), "not resolved"),  # nine seeds
        (RATIO, {0: 120, 1: 120}, {0: 120, 1: 120}, "not seen"),  # equal runs confirm nothing
        (CLAIM, {0: 1.0}, {}, "not run"),
        (replace(CLAIM, result=None, baseline=None), {}, {}, "needs the paper's scale"),
    ],
)
def test_a_claim_is_seen_where_its_interval_is_within_the_bounds(claim, new, old, verdict) -> None:
    assert judge(claim, results(new=new, old=old))["verdict"] == verdict


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four rounds of two clients with 5 MACs each, and three validations."""
    run = made_run(tmp_path / "run", {"val/accuracy": [0.1, None, 0.3, 0.5]}, macs=10)
    cells = {"tier": ["1", "2", "2", "2"], "test_accuracy": [0.9, 0.4, 0.6, None], "macs_per_example": [10, 5, 4, 3]}
    table = pd.DataFrame(cells)  # one tier without a test
    table.to_csv(run.folder / "tiers.csv", index=False)
    return run


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({}, 0.5),
        ({"last": 2}, 0.4),
        ({"target": 0.3}, 3),
        ({"target": 0.9}, 4),  # never reached: the number of rounds
        ({"macs": 35}, 0.3),  # ten per round
    ],
)
def test_figures_of_metrics(run, arguments, value) -> None:
    assert figure(run, metric="val/accuracy", **arguments) == pytest.approx(value)


def test_figures_of_tables_and_missing_figures(run) -> None:
    assert figure(run, table="tiers.csv", column="test_accuracy", row={"tier": 2}) == pytest.approx(0.5)
    assert figure(run, table="tiers.csv", column="test_accuracy", share=0.5) == pytest.approx(0.4)
    spread = figure(run, table="tiers.csv", column="test_accuracy", row={"tier": 2}, statistic="std")
    assert spread == pytest.approx(0.1)  # 0.4 and 0.6 are all rows
    assert figure(run, table="tiers.csv", column="test_accuracy", statistic="min") == pytest.approx(0.4)
    study = Study("e", measures={"a": {"metric": "none"}, "b": {"table": "none.csv"}, "c": {"ledger": "macs"}})
    rows = measured(study, "arm", 0, run.folder, 1.5)
    assert rows.to_dict("records") == [dict(zip(RESULT_COLUMNS, ("e", "arm", 0, MINUTES, 1.5), strict=True))]


def test_the_figure_of_a_rank_correlation(run) -> None:
    """Eight of ten pairs are concordant."""
    files = FinetuneFiles(run.folder / "mine")
    files.write_settings(SETTINGS | {"initial": "supernet"})
    accuracies = [(0.1, 0.2), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.5, 0.4)]
    names = ROW | {"tier": "a", "arch": "b"}
    files.write("candidates", [names | {"val_accuracy_before": x, "test_accuracy": y} for x, y in accuracies])
    assert figure(run, tau="mine") == pytest.approx((8 - 2) / 10)
    assert math.isnan(figure(run, tau="other"))


def test_a_study_keeps_its_measures_and_judges_its_claims(write, capsys) -> None:
    """Measures of removed runs and of another results file count, too."""
    pair = {"result": ["A, large", "end"], "baseline": ["B", "end"], "above": 0.2}
    content = {
        "measures": {"end": {"metric": "val/smallest/accuracy"}},
        "claims": [{"paper": "X", "where": "1", "claim": "better", **pair}],
    }
    assert main(["study", write(**content), "--seeds", "3", "4", "--results", "kept.csv"]) == 0
    stored = pd.read_csv("kept.csv")
    assert len(stored) == 2 * 2 * 2  # arms, seeds, measures
    assert set(stored["measure"]) == {"end", MINUTES}
    assert stored[stored["measure"] == MINUTES]["value"].gt(0).all()
    assert "0.25 (0.25 to 0.25)" in (text := capsys.readouterr().out)
    assert text.rstrip().endswith("seen")
    assert main(["study", write(**content), "--seeds", "3", "4", "5", "--arms", "B", "--results", "kept.csv"]) == 0
    assert len(pd.read_csv("kept.csv")) == 2 * 2 * 2 + 2
    assert len(calls("B/seed3")) == 1  # no run starts again
    assert main(["study", write(**content), "--judge", "--out", "nowhere", "--results", "kept.csv"]) == 0
    assert "0.25 (0.25 to 0.25)" in capsys.readouterr().out


def test_the_findings_have_every_arm_and_seed_of_the_studies() -> None:
    findings = pd.read_csv(ROOT / "notebooks/reproduction/findings.csv")
    studies = [kept_study(path.stem) for path in STUDIES]
    experiments = {study.name: study for study in studies if study.claims}
    assert all("seed" in study.protocol and len(study.seeds) >= 2 and study.claims for study in experiments.values())
    assert not findings.duplicated(RESULT_COLUMNS[:4]).any()
    runs = {(row.experiment, row.arm, row.seed) for row in findings[findings["measure"] == MINUTES].itertuples()}
    expected = {(name, arm, seed) for name, study in experiments.items() for arm in study.arms for seed in study.seeds}
    assert runs == expected
    for name, measures in findings.groupby("experiment")["measure"]:
        assert set(measures) == {*experiments[name].measures, MINUTES}
    for (name, arm, measure), seeds in findings.groupby(["experiment", "arm", "measure"])["seed"]:
        assert sorted(seeds) == experiments[name].seeds, f"{name}: {measure} of {arm}"
