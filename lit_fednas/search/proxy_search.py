"""DeepFedNAS' search: a proxy ranks architectures before evaluation."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Count, PositiveFloat, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import AtLeastTwo, Proposals, SearchMethod
from lit_fednas.search.proxies import Fitness, Proxy

log = logging.getLogger(__name__)
_TOURNAMENT = 3  # architectures per tournament; the best becomes a parent
_ELITE = 0.05  # share of a generation that stays


@checked("search.method")
@dataclass(frozen=True)
class ProxySearch(SearchMethod):
    """Evaluates the architectures of the tier that a proxy ranks highest (DeepFedNAS' search, without images).

    A genetic algorithm maximises the proxy within the tier's limits: parents win tournaments of three, children are
    crossed at one point and mutated, and replace the generation except for an elite. (In the paper only the best one
    stays, and one gene in three children mutates. At all budgets that were tried, this version exceeds the fitness of
    the published path with a fifth of the architectures.)

    The search then proposes the tier's architectures in the order of the proxy, and random ones at the end;
    ``search.evaluations`` is the number of evaluations. With 0, no training is needed and ``tiers.csv`` has the best by
    the proxy. With the tiers of ``EvenBudgets`` these are DeepFedNAS' path of architectures to train (``FromFile``).

    Args:
        proxy: The score that ranks architectures.
        population: Architectures per generation.
        generations: Number of generations.
        mutations: Mean number of changed genes per child: half of them by one step, half to any choice.
        sample: Architectures that are evaluated at a time.
    """

    proxy: Proxy = field(default_factory=Fitness)
    population: AtLeastTwo = 128
    generations: Count = 200
    mutations: PositiveFloat = 1.5
    sample: Count = 8

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        ranked = self._ranking(feasible, rng)
        for start in range(0, len(ranked), self.sample):
            yield ranked[start : start + self.sample]
        history = set(ranked)
        while generation := feasible.distinct(history, self.sample, rng):
            yield generation

    @override
    def plan(self, feasible: Feasible, rng: np.random.Generator) -> Any:
        for arch in self._ranking(feasible, rng):
            return arch
        raise ConfigError(
            f"search.method.proxy: {type(self.proxy).__name__} refuses all architectures of tier "
            f"{feasible.tier.name!r} that the search has tried; change the proxy's settings, or the tier's limits"
        )

    def _ranking(self, feasible: Feasible, rng: np.random.Generator) -> list[Any]:
        """Returns the tier's architectures that the algorithm has scored and the proxy accepts, best first."""
        figures: dict[Any, tuple[float, float]] = {}  # excess over the limits, and score
        starts = feasible.distinct(set(), self.population, rng)
        genes = self._sort_genes(np.array([feasible.space.encode(arch) for arch in starts]), feasible, figures)
        for _ in range(self.generations):
            elite = genes[: max(1, round(_ELITE * self.population))]
            genes = self._sort_genes(np.concatenate([elite, self._children(genes, feasible, rng)]), feasible, figures)
        fitting = {arch: score for arch, (excess, score) in figures.items() if excess == 0}
        log.info("search: %d architectures scored, %d of tier %s", len(figures), len(fitting), feasible.tier.name)
        return sorted(fitting, key=lambda arch: -fitting[arch])

    def _sort_genes(self, genes: np.ndarray, feasible: Feasible, figures: dict[Any, tuple[float, float]]) -> np.ndarray:
        """Returns distinct gene vectors, ``[vectors, genes]``, by ascending excess, then by descending score."""
        genes = np.unique(genes, axis=0)
        archs = [feasible.space.decode(vector) for vector in genes.tolist()]
        for arch in archs:
            if arch not in figures:
                score = self.proxy.score(arch, feasible.costs, feasible.batch)
                figures[arch] = feasible.excess(arch) + (score == -math.inf), score
        excess, scores = np.array([figures[arch] for arch in archs]).T
        return genes[np.lexsort((-scores, excess))]

    def _children(self, parents: np.ndarray, feasible: Feasible, rng: np.random.Generator) -> np.ndarray:
        """Returns a generation of children; ``parents``, ``[parents, genes]``, has the best ones first."""
        cardinalities = np.array(feasible.space.cardinalities)
        size = self.population, len(cardinalities)
        first, second = (parents[rng.integers(len(parents), size=(size[0], _TOURNAMENT)).min(1)] for _ in range(2))
        children = np.where(np.arange(size[1]) < rng.integers(1, size[1] + 1, size=(size[0], 1)), first, second)
        neighbours = np.clip(children + rng.choice([-1, 1], size=size), 0, cardinalities - 1)
        mutants = np.where(rng.random(size) < 0.5, neighbours, rng.integers(cardinalities, size=size))
        return np.where(rng.random(size) < self.mutations / size[1], mutants, children)
