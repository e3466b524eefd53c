"""Tiers, and the part of a space that fits one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_fednas.costs import LatencySource
from lit_fednas.records import SearchFiles
from lit_fednas.search import Evaluator, Exhaustive, Feasible, SearchSettings, TierSearch
from lit_fednas.supernets import EarlyExitResNet, PathCNN
from lit_fednas.testing.search import ToySpace, toy_cost, toy_feasible
from lit_fednas.tiers import ArchitectureCosts, ArchitectureTiers, Budgets, CumulativeCostTiers, Tier
from tests.support import linear_net, refusals, tiny_supernet


def test_excess_is_relative_and_added_up():
    tier = Tier("t", {"macs": 100.0, "bytes": 10.0})
    assert tier.excess({"macs": 100.0, "bytes": 10.0}) == 0
    assert tier.excess({"macs": 150.0, "bytes": 12.0}) == pytest.approx(0.7)
    ranged = Tier("t", {"macs": 100.0}, {"macs": 50.0})
    assert ranged.excess({"macs": 50.0}) > 0  # must be above, not at
    assert ranged.excess({"macs": 50.1}) == 0
    assert ranged.excess({"macs": 25.0}) == pytest.approx(0.5)


def test_an_unsupported_operator_counts_one_per_layer():
    net = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2])
    costs = ArchitectureCosts(net)
    arch = net.space.parse("mb3_e2 conv1 mb3_e2")
    macs = float(net.macs(arch))
    assert costs.excess(arch, Tier("t", {"macs": macs})) == 0
    assert costs.excess(arch, Tier("t", {"macs": macs}, unsupported=("sep_e1",))) == 0
    assert costs.excess(arch, Tier("t", {"macs": macs}, unsupported=("mb3_e2",))) == 2
    assert costs.excess(arch, Tier("t", {"macs": macs / 2}, unsupported=("mb3_e2", "conv1"))) == pytest.approx(4)


test_wrong_settings_are_refused = refusals(
    (lambda: Tier("a/b", {"macs": 1.0}), "name a folder"),
    (lambda: Tier("a", {"flops": 1.0}), "'flops' is not a cost; choose from macs"),
    (lambda: Budgets({"a": {}}), "tiers.budgets.*: is empty; give at least one"),
    (lambda: CumulativeCostTiers(high=1.2), "tiers.high: 1.2 must be above 0 and at most 1"),
    (lambda: CumulativeCostTiers(count=2, low=0.1), "tiers.low: 0.1 must be below high, .*, and count at least 3"),
    (
        lambda: tiers_of(ArchitectureTiers({"a": "largest", "b": "smallest"})),
        "archs.b: 'smallest' costs less than a's; order tiers by",
    ),
    (lambda: ArchitectureCosts(tiny_supernet()).cost(tiny_supernet().space.smallest, "latency_ms"), "latency: null"),
    (lambda: toy_feasible(30.5, above=30.0), "macs at most 30.5 and macs above 30"),
)


def tiers_of(source, net=None):
    net = net or tiny_supernet()
    return source.tiers(net.space, ArchitectureCosts(net), np.random.default_rng(0))


def test_cumulative_costs_by_hand():
    """Costs 1 to 4: shares 0.1, 0.3, 0.6, 1.0 of their sum."""
    sampled = np.array([3.0, 1.0, 4.0, 2.0])
    assert CumulativeCostTiers(count=4, high=0.6).bounds(sampled, 0.0, 9.0) == [1.0, 2.0, 3.0, 9.0]
    assert CumulativeCostTiers(count=2, high=0.5).bounds(sampled, 0.0, 9.0) == [2.0, 9.0]
    assert CumulativeCostTiers(count=4, low=0.3, high=1.0).bounds(sampled, 0.0, 9.0) == [2.0, 3.0, 4.0, 9.0]
    assert CumulativeCostTiers(count=1).bounds(sampled, 0.0, 9.0) == [9.0]
    # one in ten costs a hundred times the others: by rank it is the last tenth, by cost 11/12
    sampled = np.array([1.0] * 90 + [100.0] * 10)
    assert CumulativeCostTiers(count=2, high=0.5).bounds(sampled, 1.0, 100.0) == [100.0, 100.0]
    assert CumulativeCostTiers(count=2, high=0.05).bounds(sampled, 1.0, 100.0) == [1.0, 100.0]


def test_tiers_of_a_space():
    net = tiny_supernet()
    tiers = tiers_of(CumulativeCostTiers(count=3, high=0.8, samples=200, ranges=True), net)
    limits = [tier.at_most["macs"] for tier in tiers]
    assert limits == sorted(limits)
    assert limits[-1] == net.macs(net.space.largest)
    assert [tier.name for tier in tiers] == ["tier1", "tier2", "tier3"]
    assert [tier.above for tier in tiers] == [{}, {"macs": limits[0]}, {"macs": limits[1]}]
    alone = tiers_of(CumulativeCostTiers(samples=3), linear_net())  # one architecture makes one tier
    assert [(tier.name, dict(tier.at_most), tier.above) for tier in alone] == [("tier1", {"macs": 256.0}, {})]


def test_the_most_expensive_architecture_need_not_be_the_largest():
    """Before the first reduction sep_e2 has more MACs than mb1_e2, and fewer operations."""
    net = PathCNN((1, 8, 8), 4, width=8, stage_layers=[1], strides=[2], operators=["sep_e2", "mb1_e2"])
    sep, mobile = (net.space.parse(name) for name in ("sep_e2", "mb1_e2"))
    assert net.space.largest == sep
    assert net.operations(mobile) > net.operations(sep)
    # two tiers from the least to the most: the first ends halfway
    halfway = (net.operations(sep) + net.operations(mobile)) / 2
    for settings, limits in (({"count": 1}, []), ({"count": 3, "high": 1.0}, [halfway])):
        tiers = tiers_of(CumulativeCostTiers(cost="operations", samples=20, **settings), net)
        assert [tier.at_most for tier in tiers] == [{"operations": o} for o in [*limits, net.operations(mobile)]]


@pytest.mark.parametrize("cost", ["macs", "bytes"])
def test_a_tier_affords_just_what_its_architecture_costs(cost):
    net = EarlyExitResNet((3, 8, 8), 5, width=8, exits=[1, 2, 4])
    tiers = tiers_of(ArchitectureTiers({"a": "smallest", "b": "exits: 1,2", "c": "largest"}, cost), net)
    assert [tier.name for tier in tiers] == ["a", "b", "c"]
    for index, tier in enumerate(tiers):
        fitting = [arch for arch in net.space.each() if ArchitectureCosts(net).excess(arch, tier) == 0]
        assert len(fitting) == index + 1
        assert tier.at_most == {cost: getattr(net.cost(fitting[-1]), cost)}


# ---- what fits a tier ---------------------------------------------------------------------------------


def test_repair_changes_only_unfit_architectures_and_no_more_than_needed():
    feasible = toy_feasible(30.0)
    rng = np.random.default_rng(0)
    assert feasible.repaired((1, 2, 0, 0, 1, 1), rng) == (1, 2, 0, 0, 1, 1)
    assert feasible.repaired((0, 2, 0, 3, 1, 1), rng) == (0, 0, 0, 0, 1, 1)  # written canonically
    repaired = [feasible.repaired((3,) * 6, rng) for _ in range(200)]
    assert all(toy_cost(arch) <= 30.0 for arch in repaired)
    assert np.mean([toy_cost(arch) for arch in repaired]) > 20  # repair does not end at a small architecture


class WideSpace(ToySpace):
    """24 genes of four values; the cost is their sum, about 36 +- 5 for random genes."""

    choices = (range(4),) * 24
    smallest, largest = (0,) * 24, (3,) * 24

    def decode(self, genes):
        return tuple(genes)


class SumCosts:
    def cost(self, arch, name):
        return float(sum(arch))

    def excess(self, arch, tier):
        return tier.excess({"macs": self.cost(arch, "macs")})


def test_a_tier_that_no_sample_hits_is_found_by_descending():
    """Sums of 69 and 70 of at most 72: 2900 in 4**24, and neither the smallest nor the largest is among them."""
    tier = Tier("rare", {"macs": 70.0}, {"macs": 68.5})
    feasible = Feasible(WideSpace(), SumCosts(), tier, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    samples = {feasible.sample(rng) for _ in range(50)}
    assert all(sum(arch) in (69, 70) for arch in samples)


# ---- latency and memory -------------------------------------------------------------------------------


class CountedLatency(LatencySource):
    """A known latency: one millisecond per thousand parameters."""

    num_calls = 0

    def prepare(self, networks, input_shape, dtype):
        assert networks
        return {"device_name": "counted"}

    def milliseconds(self, network, input_shape, dtype):
        self.num_calls += 1
        return sum(parameter.numel() for parameter in network.parameters()) / 1000


def test_latency_is_a_limit_and_measured_once_per_architecture(tmp_path):
    latency, supernet = CountedLatency(), tiny_supernet()
    evaluator = Evaluator(supernet, [(torch.randn(4, 1, 8, 8), torch.arange(4))])
    quick = Budgets({"quick": {"latency_ms": 2.5}})
    settings = SearchSettings(quick, method=Exhaustive(), cost="latency_ms", latency=latency)
    fronts = []
    for _ in range(2):  # measured latencies are on disk, also those above the limit
        search = TierSearch(settings, evaluator, SearchFiles(tmp_path), 0)
        search.run()
        assert latency.num_calls == supernet.space.size
        fronts.append(search.files.rows("front"))
    assert fronts[0] == fronts[1]
    rows = search.files.rows("evaluations")
    assert rows
    assert all(row["latency_ms"] == row["parameters"] / 1000 <= 2.5 for row in rows)
    assert search.files.settings()["latency"] == {"source": "CountedLatency", "device_name": "counted"}
