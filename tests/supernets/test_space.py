from itertools import pairwise
from math import sqrt

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import SearchSpace

Genes = tuple[int, ...]


class Vectors(SearchSpace[Genes]):
    """The gene vectors themselves."""

    choices = (range(3), range(1), range(2), range(5))


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
        for gene, cardinality in enumerate(space.cardinalities):
            assert_loosely_uniform(genes[:, gene], cardinality)
        for gene, (first, second) in enumerate(pairwise(space.cardinalities)):
            assert_loosely_uniform(genes[:, gene] * second + genes[:, gene + 1], first * second)


def test_mutation_draws_each_gene_with_its_rate() -> None:
    space, rng = Vectors(), np.random.default_rng(0)
    assert space.mutate(space.largest, rng, 0.0) == space.largest
    changes = np.array([space.mutate(space.smallest, rng, 0.3) for _ in range(3000)]) != space.smallest
    rates = [0.3 * (1 - 1 / cardinality) for cardinality in space.cardinalities]
    assert changes.mean(axis=0) == pytest.approx(rates, abs=0.05)
    for gene, (first, second) in enumerate(pairwise(rates)):  # genes are independent
        assert (changes[:, gene] & changes[:, gene + 1]).mean() == pytest.approx(first * second, abs=0.03)


def test_architectures_are_tuples_unless_a_space_says_otherwise() -> None:
    space = Vectors()
    assert space.parse("(2, 0, 1, 4)") == space.parse([2, 0, 1, 4]) == space.largest == (2, 0, 1, 4)
    for invalid in ("(2, 0, 1)", (2, 1, 1, 4), [2, 0, 1, 5]):
        with pytest.raises(ConfigError, match="needs one of each of"):
            space.parse(invalid)
    with pytest.raises(ConfigError, match="'two' cannot be read; write it as '\\(2, 0, 1, 4\\)'"):
        space.parse("two")
