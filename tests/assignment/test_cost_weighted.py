"""Tests draws by cost against their probabilities, and pools against brute force."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from lit_fednas.assignment import CostWeighted, Listed, RisingPath, WholeSpace
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import ArchitectureCosts, Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals, tiny_supernet

NET = tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0])
SPACE = NET.space


def of_pool(pool, cost="macs"):
    return pool.architectures(ArchitectureCosts(NET), cost)


@pytest.mark.parametrize(("power", "cost"), [(1, "macs"), (0.5, "bytes"), (0.0, "macs")])
def test_draws_follow_the_power_of_the_cost(power, cost):
    assignment = CostWeighted(RisingPath(4), power, cost)
    assignment.setup(NET, Population(1))
    rng = np.random.default_rng(0)
    counts = Counter(planned(assignment, 0, [0] * 4000, SPACE, rng))
    archs = of_pool(RisingPath(4), cost)
    weights = np.array([getattr(NET.cost(arch), cost) ** -power for arch in archs])
    expected = 4000 * weights / weights.sum()
    deviations = (np.array([counts[arch] for arch in archs]) - expected) / np.sqrt(expected)
    assert len(counts) == 4
    assert np.abs(deviations).max() < 3.5


def test_a_client_draws_from_its_tier_s_architectures():
    limit = NET.macs(SPACE.smallest) * 2
    population = Population(2, (Tier("weak", {"macs": limit}), Tier("strong", {})), (0, 1))
    assignment = CostWeighted(WholeSpace(20))
    assignment.setup(NET, population)
    pool = of_pool(WholeSpace(20))
    affordable = [arch for arch in pool if NET.macs(arch) <= limit]
    assert assignment.pools.of_client(0)[0] == affordable
    assert 1 < len(affordable) < len(pool)
    assert assignment.pools.of_client(1)[0] == pool


def test_paths_are_nested_and_costs_are_spread():
    archs = of_pool(RisingPath(6))
    assert (archs[0], archs[-1], len(archs)) == (SPACE.smallest, SPACE.largest, 6)
    for smaller, larger in itertools.pairwise(archs):
        shapes = {name: tensor.shape for name, tensor in NET.subnet(larger).named_parameters()}
        for name, tensor in NET.subnet(smaller).named_parameters():
            assert all(size <= bound for size, bound in zip(tensor.shape, shapes[name], strict=True))
        assert NET.macs(smaller) < NET.macs(larger)


test_refused_before_training = refusals(
    (
        lambda: CostWeighted(RisingPath()),
        PathCNN((3, 8, 8), 4, width=4, stage_layers=[2], strides=[2]),
        Population(1),
        "assignment.pool: RisingPath",
    ),
    (
        lambda: CostWeighted(Listed(["largest"])),
        NET,
        Population(1, (Tier("weak", {"macs": 10}),), (0,)),
        "no architecture of Listed fits tier 'weak'",
    ),
    call=lambda assignment, net, population: assignment().setup(net, population),
)
