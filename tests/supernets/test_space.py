from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from lit_fednas.supernets import SearchSpace

Genes = tuple[int, ...]


class Vectors(SearchSpace[Genes]):
    """The gene vectors themselves."""

    choices = (range(3), range(1), range(2), range(5))

    @override
    def decode(self, genes: Sequence[int]) -> Genes:
        return tuple(genes)

    @override
    def encode(self, arch: Genes) -> Genes:
        return arch

    @override
    def parse(self, text: Any) -> Genes:
        raise NotImplementedError


def assert_loosely_uniform(draws: np.ndarray, cardinality: int) -> None:
    """Pearson's statistic is below its mean plus six standard deviations."""
    counts, expected = np.bincount(draws, minlength=cardinality), len(draws) / cardinality
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), cardinality - 1
    assert len(counts) == cardinality
    assert statistic <= freedom + 6 * sqrt(2 * freedom), counts


def test_samples_and_redrawn_genes_are_uniform_and_independent() -> None:
    space, rng = Vectors(), np.random.default_rng(0)
    for draw in (lambda: space.sample(rng), lambda: space.mutate(space.smallest, rng, 1.0)):
        genes = np.array([draw() for _ in range(3000)])
        for place, cardinality in enumerate(space.cardinalities):
            assert_loosely_uniform(genes[:, place], cardinality)
        for place, (first, second) in enumerate(pairwise(space.cardinalities)):
            assert_loosely_uniform(genes[:, place] * second + genes[:, place + 1], first * second)


def test_mutation_draws_each_gene_with_its_rate() -> None:
    space, rng = Vectors(), np.random.default_rng(0)
    assert space.mutate(space.largest, rng, 0.0) == space.largest
    changes = np.array([space.mutate(space.smallest, rng, 0.3) for _ in range(3000)]) != space.smallest
    rates = [0.3 * (1 - 1 / cardinality) for cardinality in space.cardinalities]
    assert changes.mean(axis=0) == pytest.approx(rates, abs=0.05)
    for place, (first, second) in enumerate(pairwise(rates)):  # each gene by itself
        assert (changes[:, place] & changes[:, place + 1]).mean() == pytest.approx(first * second, abs=0.03)
