"""SuperFed's search: an evolved population."""

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
    """Evolves one population towards accuracy within the tier (SuperFed, App. I).

    The paper searches as CompOFA (Sahni et al., 2021), which searches as once-for-all (Cai et al., 2020), whose code
    the defaults are from. Parents, the fittest of a generation, stay; the others of the next are mutants of a parent,
    or take each gene from one of two.

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
        space = feasible.space
        mutants = round(self.mutation_share * self.population)
        children = []

        def parent() -> Any:
            return parents[int(rng.integers(len(parents)))]

        for number in range(self.population):
            for _ in range(_TRIES):
                if number < mutants:
                    genes = space.encode(space.mutate(parent(), rng, self.mutation_rate))
                else:
                    pair = [space.encode(parent()) for _ in range(2)]
                    takes = rng.integers(2, size=len(pair[0]))
                    genes = tuple(pair[take][gene] for gene, take in enumerate(takes))
                child = space.decode(feasible.repaired(genes, rng))
                if child not in known:
                    known.add(child)
                    children.append(child)
                    break
        return children or feasible.distinct(known, self.population, rng)
