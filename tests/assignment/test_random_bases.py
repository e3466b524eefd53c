"""Tests the number and balance of base networks by tier."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_fednas.assignment import RandomBases
from lit_fednas.supernets import BaseNetworks, Bases, SlicedCNN
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = BaseNetworks((1, 4, 4), 3, SlicedCNN((10, 10)), 5)
ONE = NET.cost(Bases((0,)))
TIERS = (Tier("weak", {}), Tier("middle", {}), Tier("strong", {}))
COUNTS = {"weak": 1, "middle": 2, "strong": 5}


def dealt(tier_numbers, counts=COUNTS, tiers=TIERS, seed: int = 0) -> list[tuple[int, ...]]:
    assignment = RandomBases(counts)
    assignment.setup(NET, Population(len(tier_numbers), tiers, tuple(tier_numbers)))
    archs = planned(assignment, 0, range(len(tier_numbers)), NET.space, np.random.default_rng(seed))
    return [arch.members for arch in archs]


def test_clients_train_distinct_bases_as_many_as_their_tier_affords():
    tier_numbers = [0, 1, 2, 1, 0, 0, 1]
    for seed in range(20):
        for members, tier in zip(dealt(tier_numbers, seed=seed), tier_numbers, strict=True):
            assert len(members) == list(COUNTS.values())[tier]
            assert list(members) == sorted(set(members))


def test_all_are_trained_equally_often():
    for seed in range(20):
        tier_numbers = np.random.default_rng(100 + seed).integers(3, size=9).tolist()
        trained = Counter(member for members in dealt(tier_numbers, seed=seed) for member in members)
        counts = [trained[base] for base in range(5)]
        assert max(counts) - min(counts) <= 1
    assert sorted(dealt([0] * 5, seed=3)) == [(0,), (1,), (2,), (3,), (4,)]


def test_each_round_has_a_new_uniform_draw():
    rounds = 3000
    counts = Counter(dealt([1], seed=seed)[0] for seed in range(rounds))
    assert set(counts) == {(i, k) for i in range(5) for k in range(i + 1, 5)}
    assert [counts[pair] for pair in counts] == pytest.approx([rounds / 10] * 10, abs=5 * (rounds * 0.09) ** 0.5)


def test_without_tiers_all_clients_train_all_bases():
    assert dealt([], tiers=(), counts=None) == []
    assignment = RandomBases()
    assignment.setup(NET, Population(3))
    archs = planned(assignment, 0, [0, 2], NET.space, np.random.default_rng(0))
    assert archs == [NET.space.largest] * 2
    assert assignment.deployed(2) == NET.space.largest


def test_the_first_bases_are_deployed():
    assignment = RandomBases(COUNTS)
    assignment.setup(NET, Population(3, TIERS, (0, 1, 2)))
    assert [assignment.deployed(client).members for client in range(3)] == [(0,), (0, 1), (0, 1, 2, 3, 4)]


def test_the_default_is_the_most_within_the_limits():
    tiers = (
        Tier("one", {"macs": 1.5 * ONE.macs}),
        Tier("two", {"macs": 2 * ONE.macs, "bytes": 3 * ONE.bytes}),
        Tier("three", {"macs": 9 * ONE.macs, "parameters": 3 * ONE.parameters}),
        Tier("all", {"macs": 9e9}),
    )
    assert [len(members) for members in dealt([0, 1, 2, 3], None, tiers)] == [1, 2, 3, 5]


LIMITED = (Tier("weak", {"macs": 1.0 * ONE.macs}), Tier("strong", {}))

test_wrong_counts = refusals(
    ({"weak": 1}, "assignment.counts: has weak; set a value for each of: weak, strong"),
    ({"weak": 1, "strong": 6}, "assignment.counts: 6 must be 1 to 5"),
    ({"weak": 2, "strong": 3}, "assignment.counts.weak: 2 is outside the tier's limits"),
    call=lambda counts: dealt([0, 1], counts, LIMITED),
)
