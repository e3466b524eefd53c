"""Tests the assignment of candidates to groups of clients (FedNAS, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lit_fednas.assignment import CandidateGroups, Round
from lit_fednas.assignment.candidate_groups import CandidateSchedule
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, RoundValues
from lit_fednas.supernets import Model, PrunedSequence
from lit_fednas.tiers import Population, Tier
from tests.supernets.sequences import pruned_sequence


def prepared(sequence: PrunedSequence, clients: int = 8, **settings) -> CandidateGroups:
    assignment = CandidateGroups(**settings)
    assignment.setup(sequence, Population(clients, sizes=tuple(10 + client for client in range(clients))))
    return assignment


def plan(
    assignment: CandidateGroups, cohort: Sequence[int], schedule: CandidateSchedule | None = None, round: int = 0
) -> list[ClientTask]:
    values = RoundValues()
    if schedule is not None:
        values.give(schedule)
    sequence, population = assignment._supernet, assignment._population
    rng = np.random.default_rng(round)
    return assignment.plan(Round(round, cohort, sequence.space, population, rng, values=values))


def newest(clients: Sequence[int], arch: Model = Model(0)) -> list[ClientTask]:
    return [ClientTask(0, client, arch, 10 + client) for client in clients]


def test_groups_train_their_candidates() -> None:
    """A group trains all its candidates; clients outside of the cohort are left out."""
    sequence = pruned_sequence(steps=1, candidates=True)
    conv1, conv2 = Model(2, "conv1"), Model(2, "conv2")
    assignment = prepared(sequence)
    groups = ((0, 3), (1, 4, 5))
    tasks = plan(assignment, [0, 1, 2, 3, 5], CandidateSchedule(((conv1, 1), (conv2, 1)), groups))
    assert tasks == [ClientTask(0, n, arch, 10 + n, group=1) for arch in (conv1, conv2) for n in (1, 5)]
    assert all(sequence.regions(task.arch) for task in tasks)
    tasks = plan(assignment, [0, 1, 3, 4], CandidateSchedule(((conv2, 0), (conv1, 1)), groups))
    assert [(task.client, task.arch, task.group) for task in tasks] == [
        (0, conv2, 0),
        (3, conv2, 0),
        (1, conv1, 1),
        (4, conv1, 1),
    ]
    assert plan(assignment, [2, 6], CandidateSchedule(((conv1, 1), (conv2, 1)), groups)) == []


def test_the_initial_model_is_trained_before_the_first_iteration() -> None:
    sequence = pruned_sequence()
    assert plan(prepared(sequence), [1, 2, 5]) == newest([1, 2, 5])
    assignment = prepared(sequence, initial_clients=2)
    plans = [plan(assignment, range(8), round=r) for r in range(20)]
    assert {len(tasks) for tasks in plans} == {2}
    assert {task.client for tasks in plans for task in tasks} == set(range(8))
    assert {task.arch for tasks in plans for task in tasks} == {Model(0)}
    assert all(sorted(task.client for task in tasks) == [task.client for task in tasks] for tasks in plans)
    assert plan(assignment, [3]) == newest([3])
    assert plan(assignment, []) == []
    assert plan(assignment, range(8), CandidateSchedule()) == newest(range(8))  # all clients measure the model
    assert plan(prepared(pruned_sequence(steps=2)), [1, 4]) == newest([1, 4], Model(2))


def test_the_largest_affordable_model_is_deployed() -> None:
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
