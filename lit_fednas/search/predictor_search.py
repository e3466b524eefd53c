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

_CANDIDATES = 8  # random architectures per first architecture


@checked("search.method")
@dataclass(frozen=True)
class PredictorSearch(SearchMethod):
    """Evaluates the architectures on the front of error and MACs that a Gaussian process predicts, and refits it.

    The first architectures are spread evenly over the tier's MACs. Then NSGA-II runs on errors that are predicted from
    genes and the logarithm of MACs. New architectures of its best front, spread over the MACs, are evaluated.

    Args:
        first: Evaluations before the first prediction.
        sample: Evaluations between two predictions.
        population: Population of NSGA-II.
        generations: Generations of NSGA-II per prediction.
    """

    first: AtLeastTwo = 20
    sample: Count = 8
    population: AtLeastTwo = 64
    generations: Count = 20

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        candidates = feasible.distinct(set(), _CANDIDATES * self.first, rng)
        generation = _spread(candidates, feasible, self.first)
        history, scores = set(generation), []
        while generation:
            scores += yield generation
            generation = self._front(history, scores, feasible, rng) or feasible.distinct(history, self.sample, rng)
            history.update(generation)

    def _front(self, history: set[Any], scores: list[Score], feasible: Feasible, rng: np.random.Generator) -> list[Any]:
        """Returns new architectures of the first fronts of predicted error and MACs."""
        predict = _fit_predictor(scores, feasible)
        proposals = NSGA2(self.population, self.population).search(feasible, rng)
        predicted: list[Score] = []
        with suppress(StopIteration):  # NSGA-II finds no new architecture
            generation = next(proposals)
            for _ in range(self.generations):
                errors = predict(generation)
                macs = [feasible.costs.cost(arch, "macs") for arch in generation]
                expected = [Score(*values) for values in zip(generation, errors, macs, strict=True)]
                predicted += expected
                generation = proposals.send(expected)
        candidates = [score for score in predicted if score.arch not in history]
        archs: list[Any] = []
        if candidates:
            for front in NonDominatedSorting().do(np.array([[score.error, score.cost] for score in candidates])):
                archs += _spread([candidates[index].arch for index in front], feasible, self.sample - len(archs))
                if len(archs) == self.sample:
                    break
        return archs


def _spread(archs: Sequence[Any], feasible: Feasible, count: int) -> list[Any]:
    """Returns at most ``count`` of the architectures, at even distances in the order of their MACs."""
    ascending = sorted(archs, key=lambda arch: feasible.costs.cost(arch, "macs"))
    indices = np.linspace(0, len(ascending) - 1, min(count, len(ascending))).round().astype(int)
    return [ascending[index] for index in indices.tolist()]


def _fit_predictor(scores: Sequence[Score], feasible: Feasible) -> Callable[[Sequence[Any]], np.ndarray]:
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
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound predicts as well
        process.fit(features([score.arch for score in scores]), [score.error for score in scores])
    return lambda archs: process.predict(features(archs))
