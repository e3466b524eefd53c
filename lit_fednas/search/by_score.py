"""Searches that rank architectures before they evaluate any: by a proxy, or by a predictor of their errors."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
from typing_extensions import override

from lit_fednas.assignment import Pool
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Count, PositiveFloat, checked
from lit_fednas.rng import numpy_generator
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import NSGA2, AtLeastTwo, Proposals, Score, SearchMethod
from lit_fednas.search.proxies import Fitness, Proxy
from lit_fednas.tiers import ArchitectureCosts, EvenBudgets, TierSource

log = logging.getLogger(__name__)

_TOURNAMENT = 3  # of which the best is a parent
_CANDIDATES = 8  # drawn for each of the first architectures
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


@checked("search.method")
@dataclass(frozen=True)
class PredictorSearch(SearchMethod):
    """Evaluates the architectures that a Gaussian process expects on the front of error and MACs, and fits it again.

    The first architectures are spread evenly over the tier's MACs. Then NSGA-II runs on predicted errors, of genes and
    the logarithm of MACs, and some of the best front that are not known are evaluated, spread over its MACs.

    Args:
        first: Architectures that are evaluated before the first prediction.
        sample: Architectures that are evaluated between two predictions.
        population: Of NSGA-II.
        generations: Of NSGA-II, on predictions.
    """

    first: AtLeastTwo = 20
    sample: Count = 8
    population: AtLeastTwo = 64
    generations: Count = 20

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        drawn = feasible.distinct(set(), _CANDIDATES * self.first, rng)
        proposed = _spread(drawn, feasible, self.first)
        known, scores = set(proposed), []
        while proposed:
            scores += yield proposed
            proposed = self._best(known, scores, feasible, rng) or feasible.distinct(known, self.sample, rng)
            known.update(proposed)

    def _best(self, known: set[Any], scores: list[Score], feasible: Feasible, rng: np.random.Generator) -> list[Any]:
        """Returns unknown architectures of the first fronts of predicted error and MACs."""
        predict = _fitted(scores, feasible)
        proposals = NSGA2(self.population, self.population).search(feasible, rng)
        predicted: list[Score] = []
        with suppress(StopIteration):  # nothing new is left
            generation = next(proposals)
            for _ in range(self.generations):
                errors = predict(generation)
                macs = [feasible.costs.cost(arch, "macs") for arch in generation]
                expected = [Score(*values) for values in zip(generation, errors, macs, strict=True)]
                predicted += expected
                generation = proposals.send(expected)
        left = [score for score in predicted if score.arch not in known]
        chosen: list[Any] = []
        if left:
            for front in NonDominatedSorting().do(np.array([[score.error, score.cost] for score in left])):
                chosen += _spread([left[place].arch for place in front], feasible, self.sample - len(chosen))
                if len(chosen) == self.sample:
                    break
        return chosen


def _spread(archs: Sequence[Any], feasible: Feasible, count: int) -> list[Any]:
    """Returns so many of some architectures, or all, at even places in the order of their MACs."""
    ascending = sorted(archs, key=lambda arch: feasible.costs.cost(arch, "macs"))
    places = np.linspace(0, len(ascending) - 1, min(count, len(ascending))).round().astype(int)
    return [ascending[place] for place in places.tolist()]


def _fitted(scores: Sequence[Score], feasible: Feasible) -> Callable[[Sequence[Any]], np.ndarray]:
    """Returns what predicts the errors of architectures, fitted to those that are known."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    last = np.maximum(np.array(feasible.space.cardinalities) - 1, 1)

    def features(archs: Sequence[Any]) -> np.ndarray:
        genes = np.array([feasible.space.encode(arch) for arch in archs]) / last / np.sqrt(len(last))
        macs = np.log([feasible.costs.cost(arch, "macs") for arch in archs])
        return np.column_stack([genes, macs])

    process = GaussianProcessRegressor(ConstantKernel() * Matern(nu=2.5) + WhiteKernel(0.1), normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of a length at its bound, which predicts as well
        process.fit(features([score.arch for score in scores]), [score.error for score in scores])
    return lambda archs: process.predict(features(archs))


@checked("assignment.pool")
@dataclass(frozen=True)
class ProxyPath(Pool):
    """DeepFedNAS' path: within each of some limits the architecture that a proxy takes for the best.

    It is found at the start of every run, within seconds for a small supernet. For a large one let
    ``lit-fednas search`` write it (:class:`ProxySearch`), and give the file (``FromFile``).

    Args:
        budgets: The limits; as published, they are equally far apart.
        method: The search at each of them; its proxy may look at no data.
    """

    budgets: TierSource = field(default_factory=EvenBudgets)
    method: ProxySearch = field(default_factory=ProxySearch)

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, found = costs.supernet.space, []
        for tier in self.budgets.tiers(space, costs, numpy_generator(0, "path")):
            rng = numpy_generator(0, f"path-{tier.name}")
            found.append(self.method.plan(Feasible(space, costs, tier, rng), rng))
        return list(dict.fromkeys(found))
