"""Tests the ranking and dropping of candidates (FedNAS, section 4.3), and the callback's use of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.callbacks import PruneByBudgets
from lit_fednas.callbacks.pruning import CandidateTrials, Trial
from lit_fednas.callbacks.pruning.iteration import fused_accuracy
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ServerRound
from lit_fednas.messages import WITHHELD, ClientResult, ClientTask
from lit_fednas.supernets import Model, PrunedSequence
from tests.supernets.sequences import pruned_sequence

UNITS = ["a", "b", "c", "d", "e", "f"]


def prepared(units: list[str], saved: dict[str, float] | None = None) -> CandidateTrials:
    """Returns an iteration with one client per group and candidate."""
    saved = saved or dict.fromkeys(units, 0.1)
    trials = {unit: Trial(number, saved[unit]) for number, unit in enumerate(units)}
    return CandidateTrials([[number] for number in range(len(units))], trials, 0.9, True)


def result(unit: str, client: int, accuracy: float, tested: int = 10, **settings: Any) -> ClientResult:
    task = ClientTask(0, client, Model(1, unit), 5, group=client)
    counts = {"num_tested": tested, "num_tested_units": tested}
    return ClientResult(task, tested={"accuracy": accuracy}, **counts, **settings)


# ---- accuracies ---------------------------------------------------------------------------------------


def test_accuracy_is_fused_by_the_examples_tested() -> None:
    """By hand: (0.5 * 10 + 1.0 * 30) / 40."""
    tested = [result("a", 0, 0.5, 10), result("a", 1, 1.0, 30)]
    assert fused_accuracy(tested) == pytest.approx(0.875)
    failed = result("a", 2, 0.0, 100, status="error")
    untested = result("a", 3, math.nan, 0)
    assert fused_accuracy([*tested, failed, untested]) == pytest.approx(0.875)
    assert math.isnan(fused_accuracy([failed, untested]))
    assert math.isnan(fused_accuracy([]))
    rejected = result("a", 4, 0.125, 40, status=WITHHELD)  # the test counts, although the update does not
    assert fused_accuracy([*tested, rejected]) == pytest.approx(0.5)


# ---- dropped candidates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drop", "counts"),
    [
        (0.0, [6, 6, 6, 6]),
        (0.33, [4, 2, 1, 1]),  # 1.98, rounded: "all non-optimal candidates will be dropped after 3 rounds"
        (1.0, [1, 1, 1, 1]),
        (0.01, [5, 4, 3, 2]),  # drops at least one candidate
    ],
)
def test_a_share_of_the_initial_candidates_is_dropped_each_round(drop: float, counts: list[int]) -> None:
    accuracies = {unit: 0.1 * number for number, unit in enumerate(UNITS, start=1)}
    trials = prepared(UNITS)
    for count in counts:
        old_units = trials.live
        trials, rejected = trials.after({unit: accuracies[unit] for unit in old_units}, drop)
        assert set(rejected) == set(old_units) - set(trials.live)
        assert trials.live == UNITS[6 - count :]  # the most accurate candidates
    assert trials.best == "f"
    assert trials.rounds == len(counts)
    dropping_rounds = [
        next((turn for turn, count in enumerate(counts, start=1) if number < 6 - count), None) for number in range(6)
    ]
    assert [trials.trials[unit].dropped for unit in UNITS] == dropping_rounds


def test_candidates_are_ranked_by_lost_accuracy_per_saving() -> None:
    accuracies = {"a": 0.70, "b": 0.60, "c": 0.65}
    trials, rejected = prepared(list("abc"), {"a": 0.05, "b": 0.2, "c": 0.1}).after(accuracies, 1.0)
    assert trials.live == ["b"]  # (0.9 - 0.7) / 0.05 = 4, 0.3 / 0.2 = 1.5, 0.25 / 0.1 = 2.5
    assert set(rejected) == {"a", "c"}
    assert [trials.trials[unit].degradations[0] for unit in "abc"] == pytest.approx([4.0, 1.5, 2.5])


def test_the_last_round_decides_and_ties_keep_the_order_of_creation() -> None:
    trials, _ = prepared(["a", "b"]).after({"a": 0.8, "b": 0.7}, 0.0)
    assert (trials.best, trials.ranked()) == ("a", ["a", "b"])
    trials, _ = trials.after({"a": 0.5, "b": 0.6}, 0.0)
    assert (trials.best, trials.ranked()) == ("b", ["b", "a"])
    assert trials.trials["a"].accuracies == [0.8, 0.5]
    trials, rejected = prepared(["a", "b", "c"]).after({"a": 0.5, "b": 0.5, "c": 0.5}, 0.33)
    assert (trials.live, rejected) == (["a", "b"], ["c"])


def test_a_candidate_without_a_test_keeps_its_rank(caplog: pytest.LogCaptureFixture) -> None:
    trials, _ = prepared(["a", "b", "c"]).after({"a": 0.8, "b": 0.7, "c": 0.2}, 0.0)
    trials, _ = trials.after({"a": math.nan, "b": 0.75, "c": 0.1}, 0.0)  # the client of candidate a failed
    assert trials.best == "a"
    assert "candidate a: no client of its group could test it" in caplog.text
    fresh, rejected = prepared(["a", "b"]).after({"a": math.nan, "b": 0.7}, 1.0)
    assert (fresh.best, rejected) == ("b", ["a"])  # a candidate that was never tested ranks last


# ---- the callback in a round --------------------------------------------------------------------------


def after_results(callback: PruneByBudgets, sequence: PrunedSequence, results: list[ClientResult]) -> ServerRound:
    round = ServerRound(0, lambda change: change(), OverlapAverage())
    round.results = results
    callback.on_results(None, SimpleNamespace(supernet=sequence), round)  # type: ignore[arg-type]
    return round


def test_dropped_candidates_are_rejected_and_the_state_changes_after_the_server_s_step() -> None:
    sequence = pruned_sequence(candidates=True)
    callback = PruneByBudgets(0.5, drop=1.0)
    callback.trials = prepared(["conv1", "conv2"])
    state = callback.state_dict()
    results = [result("conv1", 0, 0.6, 10), result("conv2", 1, 0.2, 10), result("conv2", 2, 0.8, 30)]
    round = after_results(callback, sequence, results)
    assert round.rejected == {Model(1, "conv1")}
    assert [result.status for result in round.results] == [WITHHELD, "ok", "ok"]
    assert round.survivors == results[1:]
    assert callback.state_dict() == state  # an interrupted round leaves no trace
    assert after_results(callback, sequence, results).rejected == round.rejected
    round.end_step()
    assert callback.trials.live == ["conv2"]


# ---- budgets and rounds over the iterations (sections 4.3 and 5.1) ------------------------------------


def test_reductions_do_not_fall_below_the_least() -> None:
    callback = PruneByBudgets(0.15, decay=0.93, least=0.02)
    assert callback.budget_of(13, 0.6) == pytest.approx(0.6 - 0.05 * 0.93**12)  # 0.0209
    assert callback.budget_of(14, 0.6) == pytest.approx(0.58)  # not 0.0195
    assert callback.budget_of(14, 0.16) == 0.15  # the last budget


def test_unreachable_budgets_are_refused() -> None:
    """0.05 / (1 - 0.93) = 0.714: the decay alone cannot reach FedNAS' ConvNet at 25 %."""
    with pytest.raises(ConfigError, match=r"decay.*0\.714.*0\.75"):
        PruneByBudgets(0.25, decay=0.93)
    PruneByBudgets(0.29, decay=0.93)
    PruneByBudgets(0.25, decay=0.93, least=0.001)
    PruneByBudgets(0.01, decay=1.0)


def test_the_papers_rounds() -> None:
    """Section 5.3, Celeba: 1-5 iterations 2 rounds, 6-10: 5, 11-15: 8, more: 10."""
    callback = PruneByBudgets(0.15, rounds={16: 10, 1: 2, 6: 5, 11: 8})
    assert [callback.rounds_of(t) for t in range(1, 18)] == [2] * 5 + [5] * 5 + [8] * 5 + [10] * 2
