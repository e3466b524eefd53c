"""SuperFed's search: evolution of a population."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.ranges import PositiveShare, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import AtLeastTwo, Proposals, Score, SearchMethod

_TRIES = 100  # attempts to find a new child


@checked("search.method")
@dataclass(frozen=True)
class Evolution(SearchMethod):
    """Evolves one population towards accuracy within the tier (SuperFed, App. I).

    The paper uses the search of CompOFA (Sahni et al., 2021) and once-for-all (Cai et al., 2020); the defaults are
    those of the latter's code. The fittest architectures of a generation are parents and stay. Their children are
    mutants of one parent, or take each gene from one of two parents.

    Args:
        population: Architectures per generation.
        parent_share: The share of a generation that become parents.
        mutation_share: The share of children that are mutants; the others have two parents.
        mutation_rate: The probability that a gene of a mutant is redrawn.
    """

    population: AtLeastTwo = 100
    parent_share: PositiveShare = 0.25
    mutation_share: PositiveShare = 0.5
    mutation_rate: PositiveShare = 0.1

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        history: set[Any] = set()
        parents: list[Score] = []
        generation = feasible.distinct(history, self.population, rng)
        while generation:
            scores = yield generation
            fittest = sorted([*parents, *scores], key=lambda score: (score.error, score.cost))
            parents = fittest[: max(1, round(self.parent_share * self.population))]
            generation = self._children([parent.arch for parent in parents], feasible, history, rng)

    def _children(
        self, parents: list[Any], feasible: Feasible, history: set[Any], rng: np.random.Generator
    ) -> list[Any]:
        space = feasible.space
        num_mutants = round(self.mutation_share * self.population)
        children = []

        def parent() -> Any:
            return parents[int(rng.integers(len(parents)))]

        for number in range(self.population):
            for _ in range(_TRIES):
                if number < num_mutants:
                    genes = space.encode(space.mutate(parent(), rng, self.mutation_rate))
                else:
                    pair = [space.encode(parent()) for _ in range(2)]
                    takes = rng.integers(2, size=len(pair[0]))
                    genes = tuple(pair[take][gene] for gene, take in enumerate(takes))
                child = space.decode(feasible.repaired(genes, rng))
                if child not in history:
                    history.add(child)
                    children.append(child)
                    break
        return children or feasible.distinct(history, self.population, rng)
