"""The evolutionary search of SuperFed's App. I.

The paper says that it searches as Sahni et al. (2021, CompOFA) do, whose search is once-for-all's (Cai et al., 2020):
accuracy alone is optimised under the constraint. The fittest quarter of a population are parents, and stay; half of the
next generation are mutants of a parent, the other half take each gene from one of two parents. Defaults are those of
once-for-all's code (population 100, parents 0.25, mutants 0.5, mutation 0.1 per gene); the paper names none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.ranges import PositiveShare, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import AtLeastTwo, Proposals, Score, SearchMethod

_TRIES = 100  # per child, until one is new


@checked("search.method")
@dataclass(frozen=True)
class Evolution(SearchMethod):
    """Evolves one population towards accuracy within the tier.

    Args:
        population: Architectures per generation.
        parent_share: The share of a generation that are parents of the next.
        mutation_share: The share of the children that are mutants; the others are crossed.
        mutation_rate: The probability with which a mutant draws a gene anew.
    """

    population: AtLeastTwo = 100
    parent_share: PositiveShare = 0.25
    mutation_share: PositiveShare = 0.5
    mutation_rate: PositiveShare = 0.1

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        known: set[Any] = set()
        parents: list[Score] = []
        proposed = feasible.distinct(known, self.population, rng)
        while proposed:
            scores = yield proposed
            fittest = sorted([*parents, *scores], key=lambda score: (score.error, score.cost))
            parents = fittest[: max(1, round(self.parent_share * self.population))]
            proposed = self._children([parent.arch for parent in parents], feasible, known, rng)

    def _children(self, parents: list[Any], feasible: Feasible, known: set[Any], rng: np.random.Generator) -> list[Any]:
        mutants = round(self.mutation_share * self.population)
        children = []
        for number in range(self.population):
            for _ in range(_TRIES):
                genes = self._mutant(parents, feasible, rng) if number < mutants else _crossing(parents, feasible, rng)
                child = feasible.space.decode(feasible.repaired(genes, rng))
                if child not in known:
                    known.add(child)
                    children.append(child)
                    break
        return children or feasible.distinct(known, self.population, rng)

    def _mutant(self, parents: list[Any], feasible: Feasible, rng: np.random.Generator) -> tuple[int, ...]:
        parent = parents[int(rng.integers(len(parents)))]
        return feasible.space.encode(feasible.space.mutate(parent, rng, self.mutation_rate))


def _crossing(parents: list[Any], feasible: Feasible, rng: np.random.Generator) -> tuple[int, ...]:
    pair = [feasible.space.encode(parents[int(rng.integers(len(parents)))]) for _ in range(2)]
    takes = rng.integers(2, size=len(pair[0]))
    return tuple(pair[take][gene] for gene, take in enumerate(takes))
