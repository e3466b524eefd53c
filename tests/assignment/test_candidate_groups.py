"""Candidates by groups of clients, and who is dropped when: FedNAS, sections 4.2 and 4.3."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lit_fednas.assignment import CandidateGroups, Part
from lit_fednas.assignment.candidate_groups import degradation, fused_accuracy
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import Model
from lit_fednas.tiers import Population, Tier
from tests.supernets.sequences import pruned_sequence
from tests.support import tiny_supernet

UNITS = ["a", "b", "c", "d", "e", "f"]
RNG = np.random.default_rng(0)


def prepared(
    accuracies: dict[str, float],
    drop: float = 0.33,
    saved: dict | None = None,
    fuse: bool = True,
    before: float = 0.9,
) -> tuple[CandidateGroups, list[ClientResult]]:
    """An iteration with one client per group and candidate, and what the clients of a round say."""
    assignment = CandidateGroups(drop)
    assignment.setup(pruned_sequence(), Population(len(accuracies)))
    units = list(accuracies)
    assignment.begin(
        [[place] for place in range(len(units))],
        {unit: place for place, unit in enumerate(units)},
        saved or dict.fromkeys(units, 0.1),
        before,
        fuse,
    )
    return assignment, [result(unit, place, accuracies[unit]) for place, unit in enumerate(units)]


def result(unit: str, client: int, accuracy: float, tested: int = 10, **settings) -> ClientResult:
    task = ClientTask(0, client, Model(1, unit), 5, group=client)
    return ClientResult(task, accuracy=accuracy, num_tested=tested, **settings)


def test_accuracy_is_fused_by_the_examples_tested() -> None:
    """By hand: (0.5 * 10 + 1.0 * 30) / 40."""
    found = [result("a", 0, 0.5, 10), result("a", 1, 1.0, 30)]
    assert fused_accuracy(found) == pytest.approx(0.875)
    gone = result("a", 2, 0.0, 100, status="error")
    untested = result("a", 3, math.nan, 0)
    assert fused_accuracy([*found, gone, untested]) == pytest.approx(0.875)
    assert math.isnan(fused_accuracy([gone, untested]))


def test_degradation_is_accuracy_lost_per_resource_saved() -> None:
    assert degradation(0.8, 0.6, 0.1) == pytest.approx(2.0)
    assert degradation(0.8, 0.9, 0.1) == pytest.approx(-1.0)  # better than before


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (0.0, [6, 6, 6, 6]),
        (0.33, [4, 2, 1, 1]),  # 1.98, rounded: "all non-optimal candidates will be dropped after 3 rounds"
        (0.5, [3, 1, 1, 1]),
        (1.0, [1, 1, 1, 1]),
        (0.01, [5, 4, 3, 2]),  # at least one
    ],
)
def test_a_share_of_the_candidates_that_it_began_with_leaves_each_round(drop: float, left: list[int]) -> None:
    accuracies = {unit: 0.1 * place for place, unit in enumerate(UNITS, start=1)}
    assignment, results = prepared(accuracies, drop)
    for count in left:
        before = assignment.live
        those = [one for one in results if one.task.arch.unit in before]
        withheld = assignment.withheld(those)
        assert {arch.unit for arch in withheld} == set(before) - set(assignment.live)
        assert assignment.live == UNITS[6 - count :]  # the accurate ones
    assert assignment.best == "f"
    assert assignment.rounds == len(left)
    gone = [
        next((turn for turn, count in enumerate(left, start=1) if place < 6 - count), None) for place in range(6)
    ]
    assert [assignment.trials[unit].dropped for unit in UNITS] == gone


def test_fourteen_candidates_are_gone_after_three_rounds() -> None:
    """MobileNet's K = 14 with 33 %: 14 - 5 = 9, 4, 1."""
    units = [f"u{place}" for place in range(14)]
    assignment, results = prepared({unit: 0.01 * place for place, unit in enumerate(units)})
    counts = []
    for _ in range(3):
        live = set(assignment.live)
        assignment.withheld([one for one in results if one.task.arch.unit in live])
        counts.append(len(assignment.live))
    assert counts == [9, 4, 1]


def test_what_is_ranked_is_the_loss_per_saving_not_the_accuracy() -> None:
    accuracies = {"a": 0.70, "b": 0.60, "c": 0.65}
    assignment, results = prepared(accuracies, 1.0, saved={"a": 0.05, "b": 0.2, "c": 0.1})
    assignment.withheld(results)  # (0.9 - 0.7) / 0.05 = 4, 0.3 / 0.2 = 1.5, 0.25 / 0.1 = 2.5
    assert assignment.live == ["b"]
    assert [assignment.trials[unit].degradations for unit in "abc"] == [
        [pytest.approx(4.0)],
        [pytest.approx(1.5)],
        [pytest.approx(2.5)],
    ]


def test_the_best_is_that_of_the_last_round() -> None:
    assignment, results = prepared({"a": 0.8, "b": 0.7}, 0.0)
    assignment.withheld(results)
    assert assignment.best == "a"
    assignment.withheld([result("a", 0, 0.5), result("b", 1, 0.6)])
    assert assignment.best == "b"
    assert assignment.trials["a"].accuracies == [0.8, 0.5]


def test_ties_go_to_the_candidate_made_first() -> None:
    assignment, results = prepared({"a": 0.5, "b": 0.5, "c": 0.5}, 0.33)
    assignment.withheld(results)
    assert assignment.live == ["a", "b"]


def test_with_no_rounds_nothing_is_fused() -> None:
    assignment, results = prepared({"a": 0.8, "b": 0.7}, 1.0, fuse=False)
    assert {arch.unit for arch in assignment.withheld(results)} == {"a", "b"}
    assert assignment.best == "a"


def test_a_candidate_that_nobody_could_test_keeps_its_rank() -> None:
    assignment, results = prepared({"a": 0.8, "b": 0.7, "c": 0.2}, 0.0)
    assignment.withheld(results)
    assignment.withheld([result("b", 1, 0.75), result("c", 2, 0.1)])  # a's client went away
    assert assignment.best == "a"
    fresh, results = prepared({"a": 0.8, "b": 0.7}, 1.0)
    fresh.withheld([result("a", 0, math.nan, 0, status="error"), results[1]])
    assert fresh.best == "b"  # who was never tested ranks last


def test_who_trains_what() -> None:
    """Each candidate its group; a group of two candidates trains both; who is not in the cohort is left out."""
    assignment = CandidateGroups()
    sequence = pruned_sequence(steps=1, candidates=True)
    assignment.setup(sequence, Population(6))
    assignment.begin([[0, 3], [1, 4, 5]], {"conv1": 1, "conv2": 1}, {"conv1": 0.1, "conv2": 0.1}, 0.5)
    parts = assignment.parts(0, [0, 1, 2, 3, 5], sequence.space, RNG)
    assert parts == [Part(client, Model(2, unit), 1) for unit in ("conv1", "conv2") for client in (1, 5)]
    assert all(sequence.regions(part.arch) for part in parts)


def test_before_the_first_iteration_the_initial_model_is_trained() -> None:
    sequence = pruned_sequence()
    everybody = CandidateGroups()
    everybody.setup(sequence, Population(8))
    assert everybody.parts(0, [1, 2, 5], sequence.space, RNG) == [Part(n, Model(0)) for n in (1, 2, 5)]
    tested = [ClientResult(ClientTask(0, n, Model(0), 5), accuracy=0.1 * n, num_tested=n) for n in (1, 3)]
    assert everybody.withheld(tested) == set()
    assert everybody.accuracy == pytest.approx((0.1 + 0.9) / 4)
    assert everybody.withheld([]) == set()
    assert everybody.accuracy is None
    some = CandidateGroups(initial_clients=2)
    some.setup(sequence, Population(8))
    drawn = [some.parts(r, range(8), sequence.space, np.random.default_rng(r)) for r in range(20)]
    assert {len(parts) for parts in drawn} == {2}
    assert {part.client for parts in drawn for part in parts} == set(range(8))
    assert some.parts(0, [3], sequence.space, RNG) == [Part(3, Model(0))]
    some.measure()  # by all, and nothing is used
    assert some.parts(0, range(8), sequence.space, RNG) == [Part(n, Model(0)) for n in range(8)]
    assert some.withheld(tested) == {Model(0)}
    assert some.accuracy == pytest.approx(0.25)
    some.begin([[0]], {"conv1": 0}, {"conv1": 0.1}, 0.25)
    assert not some.measuring


def test_what_a_client_uses_is_the_largest_that_its_tier_affords() -> None:
    sequence = pruned_sequence(steps=3)
    macs = [sequence.macs(Model(number)) for number in range(4)]
    tiers = (Tier("weak", {"macs": macs[2]}), Tier("strong", {"macs": 1e9}))
    assignment = CandidateGroups()
    assignment.setup(sequence, Population(2, tiers, (0, 1)))
    assert [assignment.deployed(client) for client in (0, 1)] == [Model(2), Model(0)]
    assignment.setup(sequence, Population(2))
    assert assignment.deployed(1) == Model(3)
    assignment.setup(sequence, Population(1, (Tier("tiny", {"macs": 1}),), (0,)))
    with pytest.raises(ConfigError, match="tiny"):
        assignment.deployed(0)


def test_state_goes_there_and_back() -> None:
    assignment, results = prepared(dict.fromkeys(UNITS, 0.1))
    assignment.withheld(results)
    state = assignment.state_dict()
    live = assignment.live
    assignment.withheld([one for one in results if one.task.arch.unit in live])
    assert state["rounds"] == 1  # a copy
    again = CandidateGroups()
    again.setup(pruned_sequence(), Population(6))
    again.load_state_dict(state)
    assert (again.live, again.rounds, again.state_dict()) == (live, 1, state)
    fresh = CandidateGroups()
    fresh.setup(pruned_sequence(), Population(6))
    fresh.measure()
    fresh.withheld([ClientResult(ClientTask(0, 0, Model(0), 5), accuracy=0.5, num_tested=2)])
    other = CandidateGroups()
    other.setup(pruned_sequence(), Population(6))
    other.load_state_dict(fresh.state_dict())
    assert (other.measuring, other.accuracy) == (True, 0.5)
    with pytest.raises(CheckpointError, match="CandidateGroups"):
        again.load_state_dict({})


@pytest.mark.parametrize(
    ("settings", "match"), [({"drop": 1.5}, "drop"), ({"drop": -0.1}, "drop"), ({"initial_clients": 0}, "initial")]
)
def test_settings_out_of_range_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        CandidateGroups(**settings)


def test_another_supernet_is_refused() -> None:
    with pytest.raises(ConfigError, match="PrunedSequence"):
        CandidateGroups().setup(tiny_supernet(), Population(2))
