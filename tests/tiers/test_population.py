"""The clients by tier, and how they are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jsonargparse import ArgumentParser

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import PathCNN
from lit_fednas.tiers import (
    ArchitectureCosts,
    Budgets,
    ClientTiers,
    CSVTrace,
    CumulativeCostTiers,
    ListedTiers,
    Population,
    SyntheticTrace,
    Tier,
    TierShares,
    TraceTiers,
)
from tests.support import tiny_supernet

NET = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 2], strides=[2, 2])
THREE = Budgets({"watch": {"macs": 3e4}, "phone": {"macs": 6e4}, "laptop": {"macs": 9e4}})
TIERS = tuple(Tier(name, {"macs": limit}) for name, limit in (("a", 1.0), ("b", 2.0), ("c", 3.0)))


def test_population_by_hand():
    population = Population(6, TIERS, (2, 0, 1, 1, 0, 2))
    assert [population.tier(client).name for client in range(6)] == ["c", "a", "b", "b", "a", "c"]
    assert population.members("a") == [1, 4]
    assert population.members("b") == [2, 3]
    assert population.members("c") == [0, 5]
    assert population.eligible("a") == [0, 1, 2, 3, 4, 5]  # section 3.3: those of the tier and above
    assert population.eligible("b") == [0, 2, 3, 5]
    assert population.eligible("c") == [0, 5]


def test_who_lacks_an_operator_cannot_run_the_models_of_a_tier_below():
    small, middle, large = TIERS
    tiers = (replace(small, unsupported=("conv1",)), replace(middle, unsupported=("conv1", "id")), large)
    population = Population(6, tiers, (2, 0, 1, 1, 0, 2))
    assert population.eligible("a") == [0, 1, 4, 5]
    assert population.eligible("b") == [0, 2, 3, 5]


def test_a_tier_without_clients_is_said(caplog):
    source = Budgets({name: {"macs": 1e9} for name in "abc"})
    ClientTiers(source, TierShares([0.5, 0, 0.5])).population(NET, 4, seed=0)
    assert caplog.messages == ["model.tiers: no client is of tier b"]


def test_a_tier_may_be_empty():
    population = Population(2, TIERS, (0, 1))
    assert population.members("c") == population.eligible("c") == []


def test_a_population_without_tiers():
    population = Population(3)
    assert [population.tier(client) for client in range(3)] == [None] * 3
    for ask in (population.eligible, population.members):
        with pytest.raises(ConfigError, match=r"model.tiers: has no tier 'a'; there are: none; set model.tiers"):
            ask("a")


def test_a_tier_that_there_is_not():
    population = Population(3, TIERS, (0, 1, 2))
    for ask in (population.eligible, population.members):
        with pytest.raises(ConfigError, match=r"model.tiers: has no tier 'd'; there are: a, b, c"):
            ask("d")


@pytest.mark.parametrize("allocation", [TierShares(), TraceTiers(SyntheticTrace())])
def test_the_seed_decides(allocation):
    divided = ClientTiers(CumulativeCostTiers(count=3, samples=50), allocation)
    np.random.seed(0)  # noqa: NPY002
    first = divided.population(NET, 60, seed=1)
    np.random.seed(1)  # noqa: NPY002
    again = divided.population(NET, 60, seed=1)
    assert again.places.tolist() == first.places.tolist()
    assert again.tiers == first.tiers
    other = divided.population(NET, 60, seed=2)
    assert other.places.tolist() != first.places.tolist()
    assert [tier.at_most for tier in other.tiers] != [tier.at_most for tier in first.tiers]  # samples of its own
    assert len(first.places) == first.num_clients == 60
    assert divided.tiers(NET, seed=1) == first.tiers


def test_who_is_where_does_not_depend_on_how_the_tiers_were_found():
    sampled = ClientTiers(CumulativeCostTiers(count=3, samples=50)).population(NET, 60, seed=0)
    assert len(sampled.tiers) == 3
    assert sampled.places.tolist() == ClientTiers(THREE).population(NET, 60, seed=0).places.tolist()


def test_equal_shares_are_the_default():
    population = ClientTiers(THREE).population(NET, 30, seed=0)
    assert [len(population.members(name)) for name in ("watch", "phone", "laptop")] == [10, 10, 10]


def test_unsupported_operators_belong_to_their_tier():
    divided = ClientTiers(THREE, unsupported={"watch": ["mb3_e2", "mb1_e2"], "laptop": ["id"]})
    tiers = divided.tiers(NET, seed=0)
    assert [tier.unsupported for tier in tiers] == [("mb3_e2", "mb1_e2"), (), ("id",)]
    assert [dict(tier.at_most) for tier in tiers] == [{"macs": 3e4}, {"macs": 6e4}, {"macs": 9e4}]
    assert divided.population(NET, 5, seed=0).tiers == tiers


def test_unsupported_operators_of_an_unknown_tier():
    with pytest.raises(ConfigError, match=r"tiers.unsupported: 'fridge' is not a tier; there are: watch, phone, lapt"):
        ClientTiers(THREE, unsupported={"fridge": ["id"]}).tiers(NET, seed=0)


def test_unsupported_operators_that_there_are_not():
    divided = ClientTiers(THREE, unsupported={"phone": ["id", "mb3_e9"]})
    with pytest.raises(
        ConfigError,
        match=r"tiers.unsupported.phone: 'mb3_e9' is not an operator of PathCNN; there are: conv1, sep_e05",
    ):
        divided.tiers(NET, seed=0)
    with pytest.raises(ConfigError, match=r"'id' is not an operator of ElasticResNet; there are: none"):
        divided.tiers(tiny_supernet(), seed=0)


@pytest.mark.parametrize("cost", ["macs", "operations"])
def test_eight_tiers(cost):
    """App. J.2: seven even steps up to the bound that rho finds, and the rest for the eighth."""
    source = CumulativeCostTiers(count=8, high=0.95, cost=cost, samples=500)
    tiers = ClientTiers(source).tiers(NET, seed=0)
    assert [tier.name for tier in tiers] == [f"tier{place}" for place in range(1, 9)]
    limits = np.array([tier.at_most[cost] for tier in tiers])
    least, most = (getattr(NET, cost)(arch) for arch in (NET.space.smallest, NET.space.largest))
    assert limits[-1] == most
    assert np.diff([least, *limits[:-1]]) == pytest.approx((limits[-2] - least) / 7)
    population = ClientTiers(source).population(NET, 40, seed=0)
    assert [len(population.members(tier.name)) for tier in tiers] == [5] * 8


def test_the_most_expensive_architecture_need_not_be_the_largest():
    """Before the first reduction sep_e2 has more MACs than mb1_e2, and fewer operations."""
    net = PathCNN((1, 8, 8), 4, width=8, stage_layers=[1], strides=[2], operators=["sep_e2", "mb1_e2"])
    sep, mobile = (net.space.parse(name) for name in ("sep_e2", "mb1_e2"))
    assert net.space.largest == sep
    assert net.operations(mobile) > net.operations(sep)
    tiers = CumulativeCostTiers(count=1, cost="operations", samples=20).tiers(
        net.space, ArchitectureCosts(net), np.random.default_rng(0)
    )
    assert [dict(tier.at_most) for tier in tiers] == [{"operations": net.operations(mobile)}]
    # two tiers from the least to the most: the first ends halfway
    two = CumulativeCostTiers(count=3, high=1.0, cost="operations", samples=20).tiers(
        net.space, ArchitectureCosts(net), np.random.default_rng(0)
    )
    halfway = (net.operations(sep) + net.operations(mobile)) / 2
    assert [dict(tier.at_most) for tier in two] == [
        {"operations": halfway},
        {"operations": net.operations(mobile)},
    ]


def parsed(tiers: dict) -> ClientTiers:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--tiers", type=ClientTiers | None)
    return parser.instantiate(parser.parse_object({"tiers": tiers})).tiers


def test_tiers_from_a_config(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("ms\n10\n30\n")
    found = parsed(
        {
            "source": {
                "class_path": "lit_fednas.tiers.Budgets",
                "init_args": {"budgets": {"watch": {"macs": 5e4}, "phone": {"macs": 1e5}}},
            },
            "allocation": {
                "class_path": "lit_fednas.tiers.TraceTiers",
                "init_args": {
                    "trace": {
                        "class_path": "lit_fednas.tiers.CSVTrace",
                        "init_args": {"path": str(path), "column": "ms", "milliseconds": True},
                    },
                    "full": 1.0,
                },
            },
            "unsupported": {"watch": ["mb3_e2"]},
        }
    )
    assert isinstance(found, ClientTiers)
    assert found.source == Budgets({"watch": {"macs": 5e4}, "phone": {"macs": 1e5}})
    assert found.allocation == TraceTiers(CSVTrace(path, "ms", milliseconds=True), full=1.0)
    population = found.population(NET, 50, seed=0)
    assert population.tiers[0].unsupported == ("mb3_e2",)
    assert set(population.places) == {0, 1}


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        (
            {"class_path": "lit_fednas.tiers.TierShares", "init_args": {"shares": [0.8, 0.2]}},
            TierShares([0.8, 0.2]),
        ),
        (
            {"class_path": "lit_fednas.tiers.ListedTiers", "init_args": {"clients": {"a": [0, 2], "b": [1]}}},
            ListedTiers({"a": [0, 2], "b": [1]}),
        ),
        (
            {
                "class_path": "lit_fednas.tiers.TraceTiers",
                "init_args": {
                    "trace": {"class_path": "lit_fednas.tiers.SyntheticTrace", "init_args": {"spread": 5.0}},
                    "cost": "operations",
                },
            },
            TraceTiers(SyntheticTrace(spread=5.0), cost="operations"),
        ),
    ],
)
def test_every_allocation_from_a_config(allocation, expected):
    source = {"class_path": "lit_fednas.tiers.CumulativeCostTiers", "init_args": {"count": 2}}
    found = parsed({"source": source, "allocation": allocation})
    assert found == ClientTiers(CumulativeCostTiers(count=2), expected)
