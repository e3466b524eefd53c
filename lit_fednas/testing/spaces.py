"""What every search space promises."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import SearchSpace
from lit_fednas.testing.contract import Contract, global_generators

RANDOM_ARCHS = 20


def some_archs(space: SearchSpace[Any], count: int) -> list[Any]:
    """Returns the smallest architecture, the largest, and at most ``count`` random ones."""
    rng = numpy_generator(0, "archs")
    drawn = [space.sample(rng) for _ in range(count)]
    return list(dict.fromkeys([space.smallest, space.largest, *drawn]))


def all_or_some(space: SearchSpace[Any]) -> set[Any]:
    """Returns all architectures of a small space, decoded from all gene vectors; some of a large one."""
    if _is_small(space):
        return {space.decode(genes) for genes in itertools.product(*(range(n) for n in space.cardinalities))}
    return set(some_archs(space, 30))


class SpaceContract(Contract):
    """The contract of search spaces; ``instances`` make spaces.

    Example:
        >>> from lit_fednas.supernets import Ladder
        >>> class TestSizes(SpaceContract):
        ...     instances = {"three": lambda: Ladder([4, 8, 16])}
    """

    @property
    def space(self) -> SearchSpace[Any]:
        """The space."""
        made: SearchSpace[Any] = self.case.make()
        return made

    def check_architectures_are_small_hashable_values(self) -> None:
        """Architectures are hashed by value, pickled, and small."""
        space = self.space
        for arch in some_archs(space, RANDOM_ARCHS):
            assert hash(arch) == hash(copy.deepcopy(arch))
            assert pickle.loads(pickle.dumps(arch)) == arch
            assert len(pickle.dumps(arch)) < 2000

    def check_genes_and_text_go_round(self) -> None:
        """An architecture is restored from its genes and from its text."""
        space = self.space
        for arch in some_archs(space, 50):
            genes = space.encode(arch)
            assert len(genes) == len(space.cardinalities)
            assert all(0 <= gene < n for gene, n in zip(genes, space.cardinalities, strict=True))
            assert space.decode(genes) == arch
            assert space.parse(str(arch)) == arch
            assert space.parse(arch) == arch
            assert space.named(str(arch)) == arch
        assert space.named("smallest") == space.smallest
        assert space.named("largest") == space.largest

    def check_samples_are_uniform_and_independent_over_genes(self) -> None:
        """Samples draw each gene uniformly and apart from its neighbours."""
        space = self.space
        rng = np.random.default_rng(0)
        assert type(space.sample(rng)) is type(space.smallest)
        with _decoding_nothing(space):
            genes = np.array([space.sample(rng) for _ in range(3000)])
        assert genes.shape == (3000, len(space.cardinalities))
        for place, cardinality in enumerate(space.cardinalities):
            _loosely_uniform(genes[:, place], cardinality)
        for place, (first, second) in enumerate(itertools.pairwise(space.cardinalities)):
            _loosely_uniform(genes[:, place] * second + genes[:, place + 1], first * second)

    def check_mutation_draws_each_gene_with_its_rate(self) -> None:
        """Mutation draws each gene anew with the given rate, apart from its neighbours."""
        space = self.space
        rng = np.random.default_rng(0)
        for arch in some_archs(space, RANDOM_ARCHS):
            assert space.mutate(arch, rng, 0.0) == arch
            mutant = space.mutate(arch, rng, 0.5)
            assert space.decode(space.encode(mutant)) == mutant
        smallest = space.smallest
        old = np.array(space.encode(smallest))
        with _decoding_nothing(space):
            anew = np.array([space.mutate(smallest, rng, 1.0) for _ in range(3000)])
            some = np.array([space.mutate(smallest, rng, 0.3) for _ in range(3000)])
        for place, cardinality in enumerate(space.cardinalities):
            _loosely_uniform(anew[:, place], cardinality)
            changed = (some[:, place] != old[place]).mean()
            assert changed == pytest.approx(0.3 * (1 - 1 / cardinality), abs=0.05)
        changes = some != old
        for place, (first, second) in enumerate(itertools.pairwise(space.cardinalities)):  # each gene by itself
            together = (changes[:, place] & changes[:, place + 1]).mean()
            assert together == pytest.approx(0.3**2 * (1 - 1 / first) * (1 - 1 / second), abs=0.03)

    def check_samples_depend_on_the_generator_alone(self) -> None:
        """Sampling reads and moves no global generator."""
        space = self.space

        def draw() -> list[Any]:
            rng = np.random.default_rng(3)
            return [space.sample(rng) for _ in range(5)]

        before = global_generators()
        assert draw() == draw()
        assert global_generators() == before

    def check_the_size_counts_architectures(self) -> None:
        """A small space, of which all gene vectors are decoded, has as many architectures as it says."""
        space = self.space
        archs = all_or_some(space)
        assert len(archs) == space.size if _is_small(space) else len(archs) <= space.size
        assert {space.smallest, space.largest} <= archs


@contextmanager
def _decoding_nothing(space: SearchSpace[Any]) -> Iterator[None]:
    """Makes what a space draws the genes themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(space), "decode", lambda self, genes: tuple(genes))
        yield


def _is_small(space: SearchSpace[Any]) -> bool:
    return math.prod(space.cardinalities) <= 100


def _loosely_uniform(draws: np.ndarray, cardinality: int) -> None:
    """Validates Pearson's statistic: below its mean plus six standard deviations."""
    counts = np.bincount(draws, minlength=cardinality)
    assert len(counts) == cardinality
    expected = len(draws) / cardinality
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = cardinality - 1
    assert statistic <= freedom + 6 * math.sqrt(2 * freedom), counts
