"""Proxies: published figures and a reference of DeepFedNAS' fitness, other proxies by hand, and searches."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lit_fednas.costs.counting import Layer, read_layers
from lit_fednas.data import Classification
from lit_fednas.errors import ConfigError
from lit_fednas.search import (
    BatchLoss,
    CostProxy,
    Feasible,
    Fitness,
    ProxyPath,
    ProxySearch,
)
from lit_fednas.search.proxies import Batch
from lit_fednas.supernets import ElasticArch, ElasticResNet, PlainNetwork
from lit_fednas.testing.networks import elastic
from lit_fednas.tiers import ArchitectureCosts, EvenBudgets, Tier
from tests.supernets.instances import SPACES, kept_instance
from tests.supernets.test_elastic_resnet import PUBLISHED, WIDE

MULTIPLIERS = WIDE["width_multipliers"]
#: Fitness, effectiveness and entropy of the published path.
FIGURES = [
    (2027.0289647202164, 0.04059449960189332, 1996.434465118323),
    (2060.2693219862485, 0.03695433340039978, 2033.3149885858488),
    (2261.4383675027575, 0.025850478756467052, 2245.5878887462904),
]


@pytest.fixture(scope="module")
def published() -> ElasticResNet:
    with torch.device("meta"):
        return ElasticResNet(width_multipliers=MULTIPLIERS)


@pytest.mark.parametrize(("figures", "row"), zip(FIGURES, PUBLISHED, strict=False))
def test_published_rows(published, figures, row):
    (fitness, rho, entropy), (_, _, ratios, digits) = figures, row
    widths = tuple(MULTIPLIERS[int(digit)] for digit in digits.split())
    arch = published.space.parse(ElasticArch((2,) * 4, tuple(map(float, ratios.split())), widths=widths))
    parts = Fitness().parts(published.layers(arch))
    assert parts.entropy == pytest.approx(entropy, abs=1e-6)
    assert parts.effectiveness == pytest.approx(rho, abs=1e-9)
    widths_of_stages = [256 * 2**stage * (1 + int(digit)) / 10 for stage, digit in enumerate(digits.split()[1:])]
    assert (parts.depth_variation, parts.narrowing) == (1, 0)
    assert widths_of_stages == sorted(widths_of_stages)
    assert Fitness().score(arch, ArchitectureCosts(published)) == pytest.approx(fitness, abs=1e-6)


def reference(depths, ratios, widths):
    """Returns the fitness by the paper's formulas, with widths in channels."""

    def rounded(value):
        nearest = max(8, int(value + 4) // 8 * 8)
        return nearest + 8 if nearest < 0.9 * value else nearest

    stem, *stages = [rounded(m * base) for m, base in zip(widths, (64, 256, 512, 1024, 2048), strict=True)]
    logs, entropy, inputs = [math.log(27)], 0.0, stem
    for stage, (out, depth) in enumerate(zip(stages, depths, strict=True)):
        stage_logs = [math.log(inputs)]  # the projection's layer
        for block in range(1 + depth):
            stage_logs += [math.log(9 * inputs), math.log(9 * rounded(round(out * ratios[3 * stage + block])))]
            inputs = out
        entropy += math.log((32 / 2**stage) ** 2 * out) * sum(stage_logs)
        logs += stage_logs
    rho = len(logs) / math.exp(sum(logs) / len(logs))
    mean = sum(depths) / 4
    uniformity = math.exp(sum((depth - mean) ** 2 for depth in depths) / 4)
    narrowing = sum(max(0, first - second) for first, second in pairwise(stages))
    return entropy - 10 * uniformity + 1000 * rho - narrowing


def test_twenty_architectures_against_the_formulas(published):
    rng, costs = np.random.default_rng(0), ArchitectureCosts(published)
    for _ in range(20):
        arch = published.space.sample(rng)
        expected = reference(arch.depths, arch.ratios, arch.widths)
        assert Fitness().score(arch, costs) == pytest.approx(expected, rel=1e-9)


def test_too_effective_networks_are_refused(published):
    arch, costs = published.space.smallest, ArchitectureCosts(published)
    rho = Fitness.parts(published.layers(arch)).effectiveness
    assert math.isfinite(Fitness(most_effective=rho).score(arch, costs))
    assert Fitness(most_effective=0.99 * rho).score(arch, costs) == -math.inf


@pytest.mark.parametrize("name", sorted({*SPACES, "elastic-widths", "elastic-mlp", "elastic-tcn"}))
def test_layers_are_those_of_a_forward_pass(name):
    """A supernet's layers equal those in a forward pass of the subnet."""
    net, rng = kept_instance(name), np.random.default_rng(0)
    for arch in (net.space.smallest, net.space.largest, net.space.sample(rng)):
        layers = net.layers(arch)
        assert layers == read_layers(net.subnet(arch), net.input_shape, net.input_dtype)
        assert sum(layer.macs for layer in layers) <= net.macs(arch)  # layers exclude attention and recurrence
    assert np.isfinite(Fitness(most_effective=1e9).score(net.space.largest, ArchitectureCosts(net)))


def test_layers_by_hand():
    network = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.Flatten(), nn.Linear(24, 3))
    assert read_layers(network, (4, 4, 4)) == [Layer(9, 18, 6, 4), Layer(1, 24, 3, 1)]
    with pytest.raises(ConfigError, match="has 2 convolutions and linear layers; choose CostProxy"):
        Fitness.parts(read_layers(network, (4, 4, 4)))


def test_the_loss_on_a_batch():
    torch.manual_seed(0)
    net = PlainNetwork(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,), 2)
    inputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    batch, arch = Batch(inputs, targets, Classification(2)), net.space.largest
    loss = nn.functional.cross_entropy(net(inputs), targets)
    assert BatchLoss().score(arch, ArchitectureCosts(net), batch) == pytest.approx(-loss.item(), rel=1e-6)
    with pytest.raises(ConfigError, match="BatchLoss needs validation data of the server"):
        BatchLoss().score(arch, ArchitectureCosts(net))


@pytest.mark.parametrize("proxy", [Fitness(), CostProxy("parameters")], ids=["fitness", "parameters"])
def test_a_search_finds_the_best_of_each_tier_by_brute_force(proxy):
    net = elastic(stem_width=8, ratios=[0.5, 1.0], width_multipliers=[0.5, 1.0])
    costs = ArchitectureCosts(net)
    everything = list(net.space.each())
    for share in (0.3, 0.6, 1.0):
        limit = share * net.macs(net.space.largest)
        feasible = Feasible(net.space, costs, Tier("tier", {"macs": limit}), np.random.default_rng(0))
        fitting = [arch for arch in everything if net.macs(arch) <= limit]
        method = ProxySearch(proxy, population=32, generations=25)
        proposed = next(method.search(feasible, np.random.default_rng(0)))
        best = sorted((proxy.score(arch, costs) for arch in fitting), reverse=True)
        assert [proxy.score(arch, costs) for arch in proposed[:3]] == pytest.approx(best[:3])
        assert method.plan(feasible, np.random.default_rng(0)) == proposed[0]


def test_the_search_of_the_full_size_space_is_as_good_as_published(published):
    """A few thousand scores in 10^15 networks reach the fitness of the published path at the same MACs."""
    costs, (fitness, *_) = ArchitectureCosts(published), FIGURES[1]
    feasible = Feasible(published.space, costs, Tier("tier", {"macs": 558_704_640}), np.random.default_rng(0))
    arch = ProxySearch(generations=80).plan(feasible, np.random.default_rng(0))
    assert published.macs(arch) <= 558_704_640
    assert Fitness().score(arch, costs) >= fitness


def test_a_path_has_the_best_networks_at_even_budgets():
    """The networks have the greatest fitness within each limit, by brute force; duplicates are removed."""
    net = elastic(stem_width=8, ratios=[0.5, 1.0], width_multipliers=[0.5, 1.0])
    min_macs, max_macs = (net.macs(arch) for arch in (net.space.smallest, net.space.largest))
    proxy, costs, everything = Fitness(), ArchitectureCosts(net), list(net.space.each())
    expected = []
    for step in range(4):
        fitting = [arch for arch in everything if net.macs(arch) <= min_macs + step * (max_macs - min_macs) / 3]
        expected.append(max(proxy.score(arch, costs) for arch in fitting))
    path = ProxyPath(EvenBudgets(4), ProxySearch(proxy, 32, 25)).architectures(costs, "macs")
    assert [proxy.score(arch, costs) for arch in path] == pytest.approx(list(dict.fromkeys(expected)))
    with pytest.raises(ConfigError, match=r"tiers.least: 5e\+06 macs is above tiers.most, 1e\+06; lower it"):
        EvenBudgets(4, 5e6, 1e6).tiers(net.space, ArchitectureCosts(net), np.random.default_rng(0))


def test_a_proxy_that_refuses_all_architectures_is_an_error():
    net = elastic()
    feasible = Feasible(net.space, ArchitectureCosts(net), Tier("all", {}), np.random.default_rng(0))
    method = ProxySearch(Fitness(most_effective=1e-9), population=4, generations=2)
    with pytest.raises(ConfigError, match=r"search.method.proxy: Fitness refuses all architectures of tier 'all'"):
        method.plan(feasible, np.random.default_rng(0))
