"""The clients of each tier, and their division."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import (
    Budgets,
    ClientTiers,
    CumulativeCostTiers,
    Population,
    SyntheticTrace,
    Tier,
    TierShares,
    TraceTiers,
)
from tests.support import refusals, tiny_supernet

NET = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 2], strides=[2, 2])
THREE = Budgets({"watch": {"macs": 3e4}, "phone": {"macs": 6e4}, "laptop": {"macs": 9e4}})
TIERS = tuple(Tier(name, {"macs": limit}) for name, limit in (("a", 1.0), ("b", 2.0), ("c", 3.0)))


def test_population_by_hand():
    population = Population(6, TIERS, (2, 0, 1, 1, 0, 2))
    assert [population.tier(client).name for client in range(6)] == ["c", "a", "b", "b", "a", "c"]
    assert [population.members(name) for name in "abc"] == [[1, 4], [2, 3], [0, 5]]
    eligible = [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5], [0, 5]]  # section 3.3: clients of the tier and above
    assert [population.eligible(name) for name in "abc"] == eligible
    # a client without an operator cannot run the models of a lower tier
    small, middle, large = TIERS
    tiers = (replace(small, unsupported=("conv1",)), replace(middle, unsupported=("conv1", "id")), large)
    population = Population(6, tiers, (2, 0, 1, 1, 0, 2))
    assert [population.eligible(name) for name in "ab"] == [[0, 1, 4, 5], [0, 2, 3, 5]]


def test_tiers_that_are_empty_or_unknown():
    population = Population(2, TIERS, (0, 1))
    assert population.members("c") == population.eligible("c") == []
    for clients_of in (population.eligible, population.members):
        with pytest.raises(ConfigError, match=r"model.tiers: no tier 'd'; there are: a, b, c"):
            clients_of("d")


@pytest.mark.parametrize("allocation", [TierShares(), TraceTiers(SyntheticTrace())])
def test_the_seed_decides(allocation):
    divided = ClientTiers(CumulativeCostTiers(count=3, samples=50), allocation)
    np.random.seed(0)  # noqa: NPY002
    first = divided.population(NET, 60, seed=1)
    np.random.seed(1)  # noqa: NPY002
    repeated, other = (divided.population(NET, 60, seed=seed) for seed in (1, 2))
    assert (repeated.places.tolist(), repeated.tiers) == (first.places.tolist(), first.tiers)
    assert other.places.tolist() != first.places.tolist()
    assert [tier.at_most for tier in other.tiers] != [tier.at_most for tier in first.tiers]  # samples differ
    assert len(first.places) == first.num_clients == 60
    assert len(first.tiers) == 3
    # clients' tiers do not depend on the source of the tiers
    budgets = Budgets({tier.name: dict(tier.at_most) for tier in first.tiers})
    assert ClientTiers(budgets, allocation).population(NET, 60, seed=1).places.tolist() == first.places.tolist()


def test_unsupported_operators_belong_to_their_tier():
    divided = ClientTiers(THREE, unsupported={"watch": ["mb3_e2", "mb1_e2"], "laptop": ["id"]})
    tiers = divided.tiers(NET, seed=0)
    assert [tier.unsupported for tier in tiers] == [("mb3_e2", "mb1_e2"), (), ("id",)]
    assert [dict(tier.at_most) for tier in tiers] == [{"macs": 3e4}, {"macs": 6e4}, {"macs": 9e4}]
    assert divided.population(NET, 5, seed=0).tiers == tiers


test_unknown_names_are_refused = refusals(
    (NET, {"fridge": ["id"]}, "tiers.unsupported: 'fridge' is not a tier; there are: watch, phone, l"),
    (NET, {"phone": ["mb3_e9"]}, "tiers.unsupported.phone: 'mb3_e9' is not an operator of PathCNN; "),
    (tiny_supernet(), {"phone": ["id"]}, "tiers.*: 'id' is not an operator of Ela.*; there are: none"),
    call=lambda net, unsupported: ClientTiers(THREE, unsupported=unsupported).tiers(net, seed=0),
)
