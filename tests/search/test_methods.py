"""Contract tests of search methods, and their results beside random search."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.search import (
    NSGA2,
    CostProxy,
    DeriveGenotype,
    Evolution,
    Exhaustive,
    Feasible,
    PredictorSearch,
    ProxySearch,
    RandomSearch,
    Score,
)
from lit_fednas.search.tier_search import hypervolume, pareto_front
from lit_fednas.supernets import CellSupernet, PathCNN
from lit_fednas.testing import SearchMethodContract
from lit_fednas.testing.search import (
    ToySpace,
    generations,
    proposed,
    toy_cost,
    toy_error,
    toy_feasible,
)
from lit_fednas.tiers import ArchitectureCosts, Tier
from tests.support import refusals

METHODS = [
    *(NSGA2(population=32, sample=16), RandomSearch(sample=16), Evolution(population=32), Exhaustive()),
    ProxySearch(CostProxy(), population=16, generations=10),
    PredictorSearch(sample=64, population=16, generations=3),
]
LARGEST = toy_cost((3,) * 6)


def name(method):
    return type(method).__name__


class TestMethods(SearchMethodContract):
    instances = {name(method): lambda method=method: method for method in METHODS if not isinstance(method, Exhaustive)}  # noqa: RUF012


class TestExhaustive(SearchMethodContract):
    instances = {"all": Exhaustive}  # noqa: RUF012
    draws = False


def test_every_method_has_a_contract_test():
    """A new method needs a line in METHODS, unless it works with one kind of supernet."""
    import lit_fednas.search as search

    exported = {getattr(search, name) for name in search.__all__}
    concrete = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, search.SearchMethod)}
    of_one_kind = {kind for kind in concrete if getattr(kind, "supernet_kind", None) is not None}
    assert of_one_kind == {DeriveGenotype}
    assert {type(method) for method in METHODS} == concrete - of_one_kind - {search.SearchMethod}


@pytest.fixture(scope="module")
def cells():
    """A supernet with greater architecture parameters for one edge in each kind of cell."""
    net = CellSupernet((1, 8, 8), 4, width=2, cells=3, nodes=1)
    with torch.no_grad():
        net.network.alphas_normal[0, 4] = 1.0  # columns: none, max_pool_3x3, avg_pool_3x3, skip_connect, sep_conv_3x3
        net.network.alphas_normal[1, 7] = 1.0
        net.network.alphas_reduce[:, 3] = 1.0
    return net


def feasible_of(net, macs, **limits):
    return Feasible(net.space, ArchitectureCosts(net), Tier("weak", {"macs": macs}, **limits), np.random.default_rng(0))


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.99, 0)])
def test_the_derived_genotype_is_proposed_alone_if_it_fits(cells, share, count):
    genotype = cells.space.parse("normal sep_conv_3x3~0+dil_conv_5x5~1 reduce skip_connect~0+skip_connect~1")
    feasible = feasible_of(cells, share * cells.macs(genotype))
    assert list(DeriveGenotype().search(feasible, np.random.default_rng(0))) == [[genotype]] * count


def paths(**limits):
    net = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2], operators=["conv1", "id"])
    return feasible_of(net, 1e9, **limits)


test_invalid_searches_are_refused = refusals(
    (lambda: paths(unsupported=("conv1", "id")), "search.tiers.weak: no architecture was found"),
    (
        lambda: next(DeriveGenotype().search(paths(), np.random.default_rng(0))),
        "search.method: DeriveGenotype does not work with model.supernet PathCNN",
    ),
    (lambda: next(generations(Exhaustive(limit=2000), toy_feasible())), "2,197 architectures exceed the limit, 2,000"),
)


def volume(archs):
    return hypervolume([toy_cost(arch) for arch in archs], [1 - toy_error(arch) for arch in archs], LARGEST)


def test_nsga2_comes_within_one_percent_of_the_true_front():
    everything = list(ToySpace().each())
    assert len(everything) == 13**3
    truth = volume(everything)
    volumes = [volume(proposed(NSGA2(population=48, sample=24), toy_feasible(), 500, seed)) for seed in range(3)]
    random_volumes = [volume(proposed(RandomSearch(), toy_feasible(), 500, seed)) for seed in range(3)]
    assert min(volumes) > 0.99 * truth
    assert min(volumes) > max(random_volumes)


def test_a_predictor_needs_a_fraction_of_the_evaluations():
    """Its 44 proposals have a greater hypervolume than 120 of NSGA-II or random search."""
    for seed in (0, 1):
        predictor_volume = volume(proposed(PredictorSearch(generations=10), toy_feasible(), 44, seed))
        others = [NSGA2(population=32, sample=16), RandomSearch()]
        assert predictor_volume > max(volume(proposed(method, toy_feasible(), 120, seed)) for method in others)


def test_evolution_finds_the_true_best():
    fitting = [arch for arch in ToySpace().each() if toy_cost(arch) <= 30.0]
    truth = min(map(toy_error, fitting))
    for seed in (0, 1):
        error, random_error = (
            min(map(toy_error, proposed(method, toy_feasible(30.0), 400, seed)))
            for method in (Evolution(population=40), RandomSearch())
        )
        assert error == truth < random_error


class LongSpace(ToySpace):
    """A space of 24 genes that are all in use."""

    choices = (range(4),) * 24

    def decode(self, genes):
        return tuple(genes)


def long_feasible():
    costs: Any = SimpleNamespace(excess=lambda arch, tier: 0.0)
    return Feasible(LongSpace(), costs, Tier("all", {}), np.random.default_rng(0))


def test_evolutions_parents_stay():
    """One proposal of the first generation always stays the best, so that all later ones are its mutants."""
    method = Evolution(population=20, parent_share=0.05, mutation_share=1.0, mutation_rate=0.1)
    proposals = method.search(long_feasible(), np.random.default_rng(0))
    best, *others = next(proposals)
    generation = proposals.send([Score(best, 0.0, 1.0), *(Score(arch, 0.5, 1.0) for arch in others)])
    for _ in range(10):
        changed = [sum(a != b for a, b in zip(best, arch, strict=True)) for arch in generation]
        assert np.mean(changed) < 4  # 24 genes, each changed with 0.1 * 3/4; it would be 15 with other parents
        generation = proposals.send([Score(arch, 0.9, 1.0) for arch in generation])


def test_evolutions_crossings_take_each_gene_from_one_of_two_parents():
    method = Evolution(population=20, parent_share=0.1, mutation_share=0.01)
    proposals = method.search(long_feasible(), np.random.default_rng(0))
    first = next(proposals)
    children = proposals.send([Score(arch, float(rank), 1.0) for rank, arch in enumerate(first)])
    first_parent, second_parent = first[:2]
    assert len(children) > 15
    for child in children:
        assert all(gene in pair for gene, *pair in zip(child, first_parent, second_parent, strict=True))
    shares = [
        np.mean([gene == a for gene, a, b in zip(child, first_parent, second_parent, strict=True) if a != b])
        for child in children
    ]
    assert 0.35 < np.mean(shares) < 0.65


def test_the_front_is_that_of_brute_force():
    rng = np.random.default_rng(0)
    costs, accuracies = rng.integers(0, 12, 60), rng.integers(0, 12, 60) / 12
    front = pareto_front(costs, accuracies)
    points = set(zip(costs, accuracies, strict=True))
    beaten = {(a, b) for (a, b), (c, d) in product(points, points) if c <= a and d >= b and (a, b) != (c, d)}
    expected = points - beaten
    assert {(costs[index], accuracies[index]) for index in front} == expected
    assert len(front) == len(expected)
