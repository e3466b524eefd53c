"""Racing: an architecture is scored on growing parts of the validation data until it is clearly not on a front.

The idea is Maron and Moore's (1994, "Hoeffding Races"); the test is betting on a mean without replacement (Waudby-Smith
and Ramdas, 2024, "Estimating means of bounded random variables by betting", section 5), see :func:`evidence`.

Only an architecture that was evaluated in full can drop another: of those that cost no more and fit every tier that the
candidate fits, the one of least error, its *rival*. If the candidate's error on all validation examples is not below
the rival's, it is on no front and no tier's best. A candidate's examples are drawn uniformly, without replacement,
independently of all other candidates'; the rival's answers to them are known, so the differences are paired.

Before a candidate is scored, its rival is fixed, its draw is not. So :func:`evidence` reaches ``1 / level`` at any look
with probability ``level`` at most if the candidate is better than its rival (Ville's inequality): looks need no
correction. Candidates do: call one that is no worse than its rival an *improvement*, of which all are evaluated in full
until the first mistake. The next has the level ``(1 - confidence) / ((u + 1) (u + 2))``, where ``u`` counts the
improvements before it. The sum over all ``u`` is ``1 - confidence``, so with ``confidence`` at least a search drops no
architecture that belongs to a front, however many it scores. Dropping those that are worse than their rivals is right.
Of candidates that are scored at the same time, the one at place ``p`` assumes that all ``p`` before it are
improvements, and so has at most the level that it may have.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fednas.errors import ConfigError
from lit_fednas.federation.evaluation import normalises_over_batches
from lit_fednas.ranges import OpenUnitInterval, PositiveInt, checked
from lit_fednas.rng import generator
from lit_fednas.search.evaluator import Evaluator

#: The shares of its fortune that :func:`evidence` bets; half of one makes little difference to what is optimal.
_STAKES = np.array([0.8, 0.4, 0.2, 0.1, 0.05, 0.025])
_ANSWERS_KEPT = 256


@checked("search.racing")
@dataclass(frozen=True)
class Racing:
    """Drops an architecture as soon as it is clear that it is on no front.

    Where norms need new statistics (``model.evaluation.recalibrate_batches``), these are gathered in full for every
    architecture before its first look, and do not count in ``search.evaluations``.

    Args:
        confidence: The probability that no architecture that belongs to a front is dropped in the whole search.
        first: Examples of the first look; each further look has twice as many, up to all.

    Raises:
        ConfigError: A setting is out of range.
    """

    confidence: OpenUnitInterval = 0.95
    first: PositiveInt = 64

    def level(self, improvements: int) -> float:
        """Returns the probability with which a candidate may be dropped by mistake after so many improvements.

        Example:
            >>> [round(Racing(confidence=0.94).level(before), 3) for before in range(3)]
            [0.03, 0.01, 0.005]
        """
        return (1 - self.confidence) / ((improvements + 1) * (improvements + 2))

    def looks(self, population: int) -> list[int]:
        """Returns after how many examples there is a look; the last has all.

        Example:
            >>> Racing(first=64).looks(300)
            [64, 128, 256, 300]
        """
        counts = [self.first]
        while counts[-1] < population:
            counts.append(min(2 * counts[-1], population))
        return counts


def evidence(differences: np.ndarray, population: int) -> float:
    """Returns the logarithm of the evidence that a population's mean is above zero, given the first draws' differences.

    Example:
        >>> evidence(np.ones(6), 10), evidence(np.ones(5), 10) > evidence(np.ones(4), 10) > 0
        (inf, True)
        >>> round(float(np.exp(evidence(np.array([1.0]), 10))), 4)  # 1 plus the mean of the stakes
        1.2625
    """
    # A bet on every difference, from -1 to 1, multiplies a fortune of 1 with the stake s by 1 + s (y / m - 1), where
    # y = (1 + difference) / 2 and m is the mean of what is left of the population if the mean of all differences is
    # zero. If it is zero or below, what is left has a mean of m at most, and draws are uniform on it: the fortune, and
    # its mean over several stakes, is not expected to grow. By Ville's inequality it ever reaches 1 / level with
    # probability level at most. At the end of the population the sign of the mean is certain.
    drawn = (1 + np.asarray(differences, dtype=float)) / 2
    before = np.concatenate([[0.0], np.cumsum(drawn)])
    if before[-1] > population / 2:
        return inf
    left = (population / 2 - before[:-1]) / (population - np.arange(len(drawn)))
    gains = np.log1p(_STAKES[:, None] * (drawn / np.maximum(left, 1e-12) - 1)).sum(1)
    most = float(gains.max())
    return most + log(np.exp(gains - most).mean())


class Candidate(NamedTuple):
    """An architecture to score."""

    arch: Any
    rival: Any | None = None  # that it must not be clearly worse than; without one it is scored in full
    level: float = 0.0  # the probability with which it may be dropped by mistake


@dataclass(frozen=True)
class _Entry:
    """An architecture that was evaluated in full."""

    arch: Any
    cost: float
    error: float
    tiers: frozenset[str]

    def excels(self, other: _Entry) -> bool:
        """Returns whether it is as good as another in every tier that the other fits."""
        return self.tiers >= other.tiers and self.cost <= other.cost and self.error <= other.error


class Standings:
    """Who may drop whom: a function of the rows of ``evaluations.csv`` in their order, so that replays decide alike."""

    def __init__(self, racing: Racing) -> None:
        self.racing = racing
        self.improvements = 0
        self._front: list[_Entry] = []
        self._errors: dict[Any, float] = {}

    def candidate(self, arch: Any, cost: float, tiers: frozenset[str], place: int) -> Candidate:
        """Returns what an architecture is compared with."""
        able = [entry for entry in self._front if entry.cost <= cost and entry.tiers >= tiers]
        rival = min(able, key=lambda entry: (entry.error, entry.cost), default=None)
        level = self.racing.level(self.improvements + place)
        return Candidate(arch) if rival is None else Candidate(arch, rival.arch, level)

    def add(self, candidate: Candidate, cost: float, error: float, tiers: frozenset[str]) -> None:
        """Adds a candidate that was evaluated in full; one that was added before changes nothing."""
        if candidate.arch in self._errors:
            return
        new = _Entry(candidate.arch, cost, error, tiers)
        self._errors[candidate.arch] = error
        if candidate.rival is not None and error <= self._errors[candidate.rival]:
            self.improvements += 1
        if not any(entry.excels(new) for entry in self._front):
            self._front = [entry for entry in self._front if not new.excels(entry)] + [new]


class Race:
    """Scores candidates on an evaluator's data, as far as is needed to know that their rivals are better."""

    def __init__(self, evaluator: Evaluator, racing: Racing, metric: str, seed: int) -> None:
        task = evaluator.task
        if metric != "accuracy":
            raise ConfigError(
                f"search.racing: {metric!r} is not a mean of what is between 0 and 1 for every example; set "
                f"search.metric to accuracy, or leave search.racing out"
            )
        for name in evaluator.directions.keys() - task.metrics.keys():
            raise ConfigError(
                f"search.racing: {name!r} of model.metrics is not a mean over examples, of which some suffice; leave "
                f"one of the two out"
            )
        supernet = evaluator.supernet
        if not evaluator.recalibration and normalises_over_batches(supernet.skeleton(supernet.space.smallest)):
            raise ConfigError(
                "search.racing: norms use the statistics of the batch, so that examples cannot be left out of it; set "
                "model.evaluation.recalibrate_batches to null, or leave search.racing out"
            )
        if racing.first >= evaluator.num_examples:
            raise ConfigError(
                f"search.racing.first: {racing.first} leaves nothing of {evaluator.num_examples} validation examples "
                f"to save; lower it, or leave search.racing out"
            )
        self.evaluator = evaluator
        self.racing = racing
        self.seed = seed
        units = task.units(torch.cat([targets for _, targets in evaluator.batches])).double().cpu().numpy()
        self._units, self._most = units, float(units.max())
        self._compared = task.averaged.index(metric)
        self._answers: OrderedDict[Any, np.ndarray] = OrderedDict()

    @property
    def population(self) -> int:
        """The number of all examples."""
        return len(self._units)

    def order(self, arch: Any) -> Tensor:
        """Returns all examples in the order in which an architecture is scored on them, drawn for it alone."""
        return torch.randperm(self.population, generator=generator(self.seed, f"search-racing-{arch}"))

    def score(self, candidate: Candidate) -> dict[str, float]:
        """Returns a candidate's metrics and the number of ``examples`` that it was scored on."""
        task, order = self.evaluator.task, self.order(candidate.arch)
        known = None if candidate.rival is None else self.answers(candidate.rival)[order]
        units = self._units[order]
        values = np.empty((0, len(task.averaged)))
        answering = self.evaluator.answering(candidate.arch)
        for seen in self.racing.looks(self.population):
            values = np.concatenate([values, answering(order[len(values) : seen])])
            if known is None or seen == self.population:
                continue
            differences = (known[:seen] - values)[:, self._compared] / self._most
            if evidence(differences, self.population) >= -log(candidate.level):
                means = known.sum(0) / units.sum() + (values - known[:seen]).sum(0) / units[:seen].sum()
                return {**self._derived(np.maximum(means, 0)), "examples": seen}
        answers = np.empty_like(values)
        answers[order] = values
        self.keep(candidate.arch, answers)
        return {**self._derived(values.sum(0) / units.sum()), "examples": self.population}

    def answers(self, arch: Any) -> np.ndarray:
        """Returns what the task averages, of each example, as its sum over the example's units."""
        if arch not in self._answers:
            self.score(Candidate(arch))
        self._answers.move_to_end(arch)
        return self._answers[arch]

    def keep(self, arch: Any, answers: np.ndarray) -> None:
        """Keeps an architecture's answers, which another process may have computed."""
        self._answers[arch] = answers
        if len(self._answers) > _ANSWERS_KEPT:
            self._answers.popitem(last=False)

    def kept(self, arch: Any) -> np.ndarray | None:
        """Returns an architecture's answers, if they are kept."""
        return self._answers.get(arch)

    def _derived(self, means: np.ndarray) -> dict[str, float]:
        task = self.evaluator.task
        rounded = torch.from_numpy(means).float()  # as torchmetrics gives it to an evaluation in full
        values = task.derived(dict(zip(task.averaged, rounded, strict=True)))
        return {name: float(values[name]) for name in self.evaluator.directions}
