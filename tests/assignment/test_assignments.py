from collections import Counter

import numpy as np
import pytest

from lit_fednas.assignment import Assignment, FixedArchitecture, Sandwich, TrackingSandwich
from lit_fednas.errors import CheckpointError
from lit_fednas.messages import ClientResult
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model
from lit_fednas.supernets.elastic_resnet import ElasticSpace
from lit_fednas.testing.assignments import plan
from lit_fednas.tiers import Population
from tests.assignment.instances import planned, set_up
from tests.references.superfed import least_seen
from tests.supernets.suites import GROWTH, grown_suite

LARGE = ElasticSpace((0, 1, 2), (0.1, 0.14, 0.18, 0.22, 0.25), (256, 512, 1024, 2048), 8)  # no bound by chance


def draw(assignment: Assignment, t: int, cohort: list[int], space: ElasticSpace) -> list:
    """Returns a round's architectures after the assignment has observed the results."""
    tasks = plan(assignment, t, cohort, space, numpy_generator(0, "assignment", t))
    assignment.observe([ClientResult(task) for task in tasks])
    return [task.arch for task in tasks]


def cohort(t: int, clients: int, size: int) -> list[int]:
    return sorted(numpy_generator(5, "cohort", t).choice(clients, size=size, replace=False).tolist())


@pytest.mark.parametrize("size", [1, 2, 8])
def test_one_largest_and_one_smallest(size: int) -> None:
    for t in range(20):
        archs = draw(Sandwich(), t, cohort(t, 20, size), LARGE)
        assert archs.count(LARGE.largest) == 1
        assert archs.count(LARGE.smallest) == (1 if size > 1 else 0)
        assert len(set(archs)) == size  # random architectures of a large space differ


@pytest.mark.parametrize("kind", [Sandwich, TrackingSandwich])
def test_every_position_gets_the_bounds_equally_often(kind: type[Sandwich]) -> None:
    """A new tracking sandwich breaks its ties at random."""
    counts: Counter = Counter()
    for seed in range(1500):
        set_up(assignment := kind(), LARGE, 5)
        archs = planned(assignment, 0, list(range(5)), LARGE, np.random.default_rng(seed))
        counts[archs.index(LARGE.largest), archs.index(LARGE.smallest)] += 1
    assert len(counts) == 20
    assert all(count == pytest.approx(75, abs=45) for count in counts.values())


def seen(counts: dict[int, int]) -> dict[int, int]:
    return {client: count for client, count in counts.items() if count}


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_tracking_follows_the_rule(size: int) -> None:
    """Section 2.4: the bounds go to the clients that have seen them least; the largest bound is first."""
    tracking = TrackingSandwich()
    set_up(tracking, LARGE, 20)
    largest_seen, smallest_seen = dict.fromkeys(range(20), 0), dict.fromkeys(range(20), 0)
    for t in range(200):
        clients = cohort(t, 20, size)
        archs = dict(zip(clients, draw(tracking, t, clients, LARGE), strict=True))
        largest, smallest = (
            [client for client in clients if archs[client] == bound] for bound in (LARGE.largest, LARGE.smallest)
        )
        assert len(largest) == 1
        assert largest[0] in least_seen(largest_seen, clients)
        largest_seen[largest[0]] += 1
        others = [client for client in clients if client != largest[0]]
        if others:
            assert len(smallest) == 1
            assert smallest[0] in least_seen(smallest_seen, others)
            smallest_seen[smallest[0]] += 1
    assert tracking.state_dict() == {"largest_seen": seen(largest_seen), "smallest_seen": seen(smallest_seen)}


def test_a_state_of_another_number_of_clients() -> None:
    tracking = TrackingSandwich()
    set_up(tracking, LARGE, 4)
    with pytest.raises(CheckpointError, match="assignment"):
        tracking.load_state_dict({"largest_seen": {4: 1}, "smallest_seen": {0: 1}})


def test_fixed_architectures_are_planned_and_deployed() -> None:
    for text, arch in (
        ("largest", LARGE.largest),
        ("smallest", LARGE.smallest),
        ("d: [0,1,0,1], e: 0.14", LARGE.parse("d: [0,1,0,1], e: 0.14")),
    ):
        fixed = FixedArchitecture(text)
        set_up(fixed, LARGE, 5)
        assert draw(fixed, 3, [1, 4], LARGE) == [arch, arch]
        assert fixed.deployed(1) == arch


def test_the_final_largest_architecture_is_deployed():
    """A suite grows during training."""
    suite = grown_suite(models=1)
    (fixed := FixedArchitecture()).setup(suite, Population(3))
    suite.add(*GROWTH[0][:2], seed=0, round=4)
    assert fixed.deployed(0) == Model(1)
