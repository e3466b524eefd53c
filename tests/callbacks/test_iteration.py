"""How candidates are ranked, and which are dropped when: FedNAS, section 4.3; what the callback makes of it."""

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
    """An iteration with one client per group and candidate."""
    saved = saved or dict.fromkeys(units, 0.1)
    trials = {unit: Trial(place, saved[unit]) for place, unit in enumerate(units)}
    return CandidateTrials([[place] for place in range(len(units))], trials, 0.9, True)


def result(unit: str, client: int, accuracy: float, tested: int = 10, **settings: Any) -> ClientResult:
    task = ClientTask(0, client, Model(1, unit), 5, group=client)
    counts = {"num_tested": tested, "num_tested_units": tested}
    return ClientResult(task, tested={"accuracy": accuracy}, **counts, **settings)


# ---- accuracies ---------------------------------------------------------------------------------------


def test_accuracy_is_fused_by_the_examples_tested() -> None:
    """By hand: (0.5 * 10 + 1.0 * 30) / 40."""
    found = [result("a", 0, 0.5, 10), result("a", 1, 1.0, 30)]
    assert fused_accuracy(found) == pytest.approx(0.875)
    gone = result("a", 2, 0.0, 100, status="error")
    untested = result("a", 3, math.nan, 0)
    assert fused_accuracy([*found, gone, untested]) == pytest.approx(0.875)
    assert math.isnan(fused_accuracy([gone, untested]))
    assert math.isnan(fused_accuracy([]))
    rejected = result("a", 4, 0.125, 40, status=WITHHELD)  # the test counts, if not the update
    assert fused_accuracy([*found, rejected]) == pytest.approx(0.5)


# ---- who is dropped -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (0.0, [6, 6, 6, 6]),
        (0.33, [4, 2, 1, 1]),  # 1.98, rounded: "all non-optimal candidates will be dropped after 3 rounds"
        (1.0, [1, 1, 1, 1]),
        (0.01, [5, 4, 3, 2]),  # at least one
    ],
)
def test_a_share_of_the_candidates_that_it_began_with_leaves_each_round(drop: float, left: list[int]) -> None:
    accuracies = {unit: 0.1 * place for place, unit in enumerate(UNITS, start=1)}
    trials = prepared(UNITS)
    for count in left:
        before = trials.live
        trials, rejected = trials.after({unit: accuracies[unit] for unit in before}, drop)
        assert set(rejected) == set(before) - set(trials.live)
        assert trials.live == UNITS[6 - count :]  # the accurate ones
    assert trials.best == "f"
    assert trials.rounds == len(left)
    gone = [next((turn for turn, count in enumerate(left, start=1) if place < 6 - count), None) for place in range(6)]
    assert [trials.trials[unit].dropped for unit in UNITS] == gone


def test_what_is_ranked_is_the_loss_per_saving_not_the_accuracy() -> None:
    accuracies = {"a": 0.70, "b": 0.60, "c": 0.65}
    trials, rejected = prepared(list("abc"), {"a": 0.05, "b": 0.2, "c": 0.1}).after(accuracies, 1.0)
    assert trials.live == ["b"]  # (0.9 - 0.7) / 0.05 = 4, 0.3 / 0.2 = 1.5, 0.25 / 0.1 = 2.5
    assert set(rejected) == {"a", "c"}
    assert [trials.trials[unit].degradations[0] for unit in "abc"] == pytest.approx([4.0, 1.5, 2.5])


def test_the_best_is_that_of_the_last_round_and_ties_go_to_the_candidate_made_first() -> None:
    trials, _ = prepared(["a", "b"]).after({"a": 0.8, "b": 0.7}, 0.0)
    assert (trials.best, trials.ranked()) == ("a", ["a", "b"])
    trials, _ = trials.after({"a": 0.5, "b": 0.6}, 0.0)
    assert (trials.best, trials.ranked()) == ("b", ["b", "a"])
    assert trials.trials["a"].accuracies == [0.8, 0.5]
    trials, rejected = prepared(["a", "b", "c"]).after({"a": 0.5, "b": 0.5, "c": 0.5}, 0.33)
    assert (trials.live, rejected) == (["a", "b"], ["c"])


def test_a_candidate_that_nobody_could_test_keeps_its_rank(caplog: pytest.LogCaptureFixture) -> None:
    trials, _ = prepared(["a", "b", "c"]).after({"a": 0.8, "b": 0.7, "c": 0.2}, 0.0)
    trials, _ = trials.after({"a": math.nan, "b": 0.75, "c": 0.1}, 0.0)  # a's client went away
    assert trials.best == "a"
    assert "candidate a: no client of its group could test it" in caplog.text
    fresh, rejected = prepared(["a", "b"]).after({"a": math.nan, "b": 0.7}, 1.0)
    assert (fresh.best, rejected) == ("b", ["a"])  # what was never tested ranks last


# ---- the callback in a round --------------------------------------------------------------------------


def after_results(callback: PruneByBudgets, sequence: PrunedSequence, results: list[ClientResult]) -> ServerRound:
    round = ServerRound(0, lambda change: change(), OverlapAverage())
    round.results = results
    callback.on_results(None, SimpleNamespace(supernet=sequence), round)  # type: ignore[arg-type]
    return round


def test_what_was_dropped_is_rejected_and_nothing_is_remembered_before_the_server_s_step() -> None:
    sequence = pruned_sequence(candidates=True)
    callback = PruneByBudgets(0.5, drop=1.0)
    callback.trials = prepared(["conv1", "conv2"])
    state = callback.state_dict()
    results = [result("conv1", 0, 0.6, 10), result("conv2", 1, 0.2, 10), result("conv2", 2, 0.8, 30)]
    round = after_results(callback, sequence, results)
    assert round.rejected == {Model(1, "conv1")}
    assert [one.status for one in round.results] == [WITHHELD, "ok", "ok"]
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
    assert callback.budget_of(14, 0.16) == 0.15  # the last


def test_budgets_that_never_arrive_are_refused() -> None:
    """0.05 / (1 - 0.93) = 0.714: FedNAS' ConvNet at 25 % cannot be had by decay alone."""
    with pytest.raises(ConfigError, match=r"decay.*0\.714.*0\.75"):
        PruneByBudgets(0.25, decay=0.93)
    PruneByBudgets(0.29, decay=0.93)
    PruneByBudgets(0.25, decay=0.93, least=0.001)
    PruneByBudgets(0.01, decay=1.0)


def test_the_papers_rounds() -> None:
    """Section 5.3, Celeba: 1-5 iterations 2 rounds, 6-10: 5, 11-15: 8, more: 10."""
    callback = PruneByBudgets(0.15, rounds={16: 10, 1: 2, 6: 5, 11: 8})
    assert [callback.rounds_of(t) for t in range(1, 18)] == [2] * 5 + [5] * 5 + [8] * 5 + [10] * 2
