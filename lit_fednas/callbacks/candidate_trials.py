"""Ranking and early dropping of candidates in an iteration: FedNAS, section 4.3, Alg. 4.1, lines 22 to 32."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from lit_fednas.data import Task
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult

log = logging.getLogger(__name__)


@dataclass
class Trial:
    """How one candidate fares.

    Attributes:
        group: The group of clients that trains and tests it.
        saved: What it saves over the model that it comes from, as a share of the initial model's resource.
        accuracies: On its group's validation data, round by round; NaN where no client could test it.
        degradations: Likewise, what it was ranked by.
        dropped: The round of the iteration, from 1, in which it was dropped; ``None`` if it is still tried.
    """

    group: int
    saved: float
    accuracies: list[float] = field(default_factory=list)
    degradations: list[float] = field(default_factory=list)
    dropped: int | None = None


@dataclass
class CandidateTrials:
    """An iteration: its groups of clients, and the candidates that they try.

    Attributes:
        groups: The clients of each group.
        trials: How the candidates fare, by unit, in the order in which they were made.
        before: The accuracy of the model that they come from.
        fuse: Whether updates are used at all; if not, candidates are tested and none is trained (the zero rounds
            of Fig. 7).
        rounds: The number of rounds that the iteration has had.
    """

    groups: list[list[int]]
    trials: dict[str, Trial]
    before: float
    fuse: bool = True
    rounds: int = 0

    @property
    def live(self) -> list[str]:
        """The units of the candidates that have not been dropped."""
        return [unit for unit, trial in self.trials.items() if trial.dropped is None]

    @property
    def best(self) -> str:
        """The unit of the candidate that the last round ranked first."""
        return self.ranked()[0]

    def ranked(self) -> list[str]:
        """Returns the units that have not been dropped, the smallest degradation first; ties as they were made."""
        last = {unit: self.trials[unit].degradations[-1:] or [math.inf] for unit in self.live}
        return sorted(last, key=lambda unit: last[unit][0])

    def after(self, accuracies: Mapping[str, float], drop: float) -> tuple[Self, list[str]]:
        """Ranks the candidates by a round's tests, and drops the weakest.

        The number to drop is a share of the candidates that the iteration began with, rounded, and at least one of
        them stays. (As printed, line 25 takes the maximum with one less than all that are left, and would drop all
        but one at once; the text says that with 33 % all but the best are gone after three rounds.)

        Args:
            accuracies: Of each candidate that has not been dropped, by unit; NaN where no client could test it.
            drop: Share of an iteration's candidates that is dropped after each round; 0 for none.

        Returns:
            The iteration after the round, and the units whose updates are not used.
        """
        after = copy.deepcopy(self)
        after.rounds += 1
        for unit in self.live:
            trial, accuracy = after.trials[unit], accuracies[unit]
            trial.accuracies.append(accuracy)
            if math.isnan(accuracy):
                known = trial.degradations[-1] if trial.degradations else math.inf
                log.warning("candidate %s: no client of its group could test it in this round", unit)
                trial.degradations.append(known)
            else:
                trial.degradations.append(degradation(self.before, accuracy, trial.saved))
        ranked = after.ranked()
        count = 0 if drop == 0 else min(max(1, round(drop * len(self.trials))), len(ranked) - 1)
        dropped = ranked[len(ranked) - count :]
        for unit in dropped:
            after.trials[unit].dropped = after.rounds
        return after, dropped if self.fuse else ranked

    def to_plain(self) -> dict[str, Any]:
        """Returns plain values, for checkpoints."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Restores an iteration from what :meth:`to_plain` returned."""
        plain: dict[str, Any] = copy.deepcopy(dict(values))
        trials = {unit: Trial(**trial) for unit, trial in plain.pop("trials").items()}
        return cls(trials=trials, **plain)


def check_comparable(task: Task) -> None:
    """Validates that candidates can be compared.

    Raises:
        ConfigError: The task has no accuracy.
    """
    if "accuracy" not in task.metrics:
        raise ConfigError(
            f"prune_by_budgets: compares candidates by their accuracy, which a {type(task).__name__} has not; set it "
            f"to null, or choose data with classes"
        )


def fused_accuracy(results: Sequence[ClientResult]) -> float:
    """Returns the mean of clients' accuracies, weighted by the examples tested (section 4.3), or NaN."""
    tested = [result for result in results if result.answered and result.num_tested]
    count = sum(result.num_tested for result in tested)
    return sum(result.accuracy * result.num_tested for result in tested) / count if count else math.nan


def degradation(before: float, accuracy: float, saved: float) -> float:
    """Returns the accuracy that a candidate loses per resource that it saves (section 4.3, "acc_degradation").

    Args:
        before: Accuracy of the model that it comes from.
        accuracy: Its own.
        saved: What it saves, above 0; here as a share of the initial model's, which changes no order.

    Example:
        >>> degradation(0.75, 0.5, 0.125)
        2.0
    """
    return (before - accuracy) / saved
