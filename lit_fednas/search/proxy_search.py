"""DeepFedNAS' search: a proxy ranks architectures before any is evaluated."""

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
_TOURNAMENT = 3  # of which the best is a parent
_ELITE = 0.05  # of a generation, that stays


@checked("search.method")
@dataclass(frozen=True)
class ProxySearch(SearchMethod):
    """Evaluates the architectures of the tier that a proxy ranks highest (DeepFedNAS' search, without images).

    A genetic algorithm maximises the proxy within the tier's limits: parents win tournaments of three, children are
    crossed at one point and mutated, and replace their parents, of which the best stay. (As published, but there the
    very best stays, and one gene in three children mutates. Here the published path's fitness is exceeded at each of
    its budgets that were tried, with a fifth of the architectures.)

    The tier's architectures are then proposed in the order of the proxy, those that the algorithm has not met at the
    end: ``search.evaluations`` says how many of the best are evaluated. With 0 none is, nothing needs to be trained,
    and ``tiers.csv`` has the best by the proxy; with the tiers of ``EvenBudgets`` these are DeepFedNAS' path of
    architectures to train (``FromFile``).

    Args:
        proxy: What ranks architectures.
        population: Architectures of a generation.
        generations: Their number.
        mutations: Genes of a child that are changed, on average: half of them by one step, half to any choice.
        sample: Architectures that are evaluated at a time.

    Raises:
        ConfigError: The proxy cannot score the supernet's architectures.
    """

    proxy: Proxy = field(default_factory=Fitness)
    population: AtLeastTwo = 128
    generations: Count = 200
    mutations: PositiveFloat = 1.5
    sample: Count = 8

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        ranked = self._ranked(feasible, rng)
        for start in range(0, len(ranked), self.sample):
            yield ranked[start : start + self.sample]
        known = set(ranked)
        while drawn := feasible.distinct(known, self.sample, rng):
            yield drawn

    @override
    def plan(self, feasible: Feasible, rng: np.random.Generator) -> Any:
        for arch in self._ranked(feasible, rng):
            return arch
        raise ConfigError(
            f"search.method.proxy: {type(self.proxy).__name__} refuses all architectures of tier "
            f"{feasible.tier.name!r} that were tried; change the proxy's settings, or the tier's limits"
        )

    def _ranked(self, feasible: Feasible, rng: np.random.Generator) -> list[Any]:
        """Returns what the algorithm has met of the tier, best first, without what the proxy refuses."""
        known: dict[Any, tuple[float, float]] = {}  # by how much architectures exceed the limits, and their scores
        starts = feasible.distinct(set(), self.population, rng)
        genes = self._ordered(np.array([feasible.space.encode(arch) for arch in starts]), feasible, known)
        for _ in range(self.generations):
            elite = genes[: max(1, round(_ELITE * self.population))]
            genes = self._ordered(np.concatenate([elite, self._children(genes, feasible, rng)]), feasible, known)
        fitting = {arch: score for arch, (excess, score) in known.items() if excess == 0}
        log.info("search: %d architectures scored, %d of tier %s", len(known), len(fitting), feasible.tier.name)
        return sorted(fitting, key=lambda arch: -fitting[arch])

    def _ordered(self, genes: np.ndarray, feasible: Feasible, known: dict[Any, tuple[float, float]]) -> np.ndarray:
        """Returns distinct gene vectors, ``[vectors, genes]``: what fits by descending scores, then by the excess."""
        genes = np.unique(genes, axis=0)
        archs = [feasible.space.decode(vector) for vector in genes.tolist()]
        for arch in archs:
            if arch not in known:
                score = self.proxy.score(arch, feasible.costs, feasible.batch)
                known[arch] = feasible.excess(arch) + (score == -math.inf), score
        excess, scores = np.array([known[arch] for arch in archs]).T
        return genes[np.lexsort((-scores, excess))]

    def _children(self, parents: np.ndarray, feasible: Feasible, rng: np.random.Generator) -> np.ndarray:
        """Returns a generation of children of gene vectors, ``[parents, genes]``, of which the best come first."""
        cardinalities = np.array(feasible.space.cardinalities)
        size = self.population, len(cardinalities)
        one, other = (parents[rng.integers(len(parents), size=(size[0], _TOURNAMENT)).min(1)] for _ in range(2))
        children = np.where(np.arange(size[1]) < rng.integers(1, size[1] + 1, size=(size[0], 1)), one, other)
        neighbours = np.clip(children + rng.choice([-1, 1], size=size), 0, cardinalities - 1)
        changed = np.where(rng.random(size) < 0.5, neighbours, rng.integers(cardinalities, size=size))
        return np.where(rng.random(size) < self.mutations / size[1], changed, children)
