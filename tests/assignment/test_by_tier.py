"""Architectures by tier."""

from __future__ import annotations

import numpy as np

from lit_fednas.assignment import ByTier
from lit_fednas.supernets import EarlyExitResNet, GroupNorm
from lit_fednas.testing.networks import elastic
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = EarlyExitResNet((3, 8, 8), 5, width=4, norm=GroupNorm(2), blocks=[1, 1, 1], exits=[1, 2, 3])
MACS = [NET.cost(arch).macs for arch in NET.space.each()]


def population(*limits: float, cost: str = "macs") -> Population:
    tiers = tuple(Tier(f"t{number}", {cost: limit}) for number, limit in enumerate(limits))
    return Population(4, tiers, (0, 1, 1, 0))


def assigned(assignment: ByTier, cohort: list[int]) -> list[str]:
    return [str(arch) for arch in planned(assignment, 3, cohort, NET.space, np.random.default_rng(0))]


def test_a_tier_gets_the_most_expensive_affordable_architecture():
    by_tier = ByTier()
    by_tier.setup(NET, population(MACS[0], MACS[2] - 1))
    assert assigned(by_tier, [2, 0, 1]) == ["exits: 1,2", "exits: 1", "exits: 1,2"]


def test_expense_is_measured_by_the_limited_cost():
    """Within these limits the network with most parameters does not have most MACs."""
    net = elastic()
    costs = {arch: net.cost(arch) for arch in net.space.each()}

    def dearest(limit: int, cost: str) -> int:
        affordable = [network for network in costs.values() if network.parameters <= limit]
        return max(affordable, key=lambda network: getattr(network, cost)).parameters

    limits = sorted(network.parameters for network in costs.values())
    limits = [limit for limit in limits if dearest(limit, "macs") < dearest(limit, "parameters")]
    (by_tier := ByTier()).setup(net, population(limits[0], limits[-1], cost="parameters"))
    archs = planned(by_tier, 0, [0, 1], net.space, np.random.default_rng(0))
    assert [costs[arch].parameters for arch in archs] == [limits[0], limits[-1]]


def test_named_architectures():
    by_tier = ByTier({"t1": "exits: 3", "t0": "smallest"})
    by_tier.setup(NET, population(MACS[0], MACS[2]))
    assert assigned(by_tier, [0, 1, 2, 3]) == ["exits: 1", "exits: 3", "exits: 3", "exits: 1"]


test_errors = refusals(
    (None, (), "model.tiers: is null"),
    (None, (MACS[0] - 1, MACS[2]), "no architecture fits tier 't0'; raise its limits"),
    ({"t0": "smallest"}, (1e9, 1e9), "assignment.archs: has t0; set a value for each of: t0, t1"),
    ({"t0": "largest", "t1": "largest"}, (MACS[0], 1e9), r"archs.t0: largest is outside"),
    call=lambda archs, limits: ByTier(archs).setup(NET, population(*limits) if limits else Population(4)),
)
