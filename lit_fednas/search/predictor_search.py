"""Search by a predictor of the architectures' errors, a Gaussian process."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
from typing_extensions import override

from lit_fednas.ranges import Count, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import AtLeastTwo, Proposals, Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2

_CANDIDATES = 8  # drawn for each of the first architectures


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
