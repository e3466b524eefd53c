"""Candidates are tried by groups of clients, and the weak ones dropped early: FedNAS, sections 4.2 and 4.3."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment, Part
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult
from lit_fednas.supernets import Model, PrunedSequence, SearchSpace, Supernet
from lit_fednas.tiers import ArchitectureCosts, Population

log = logging.getLogger(__name__)


@dataclass
class Trial:
    """How one candidate fares.

    Attributes:
        group: The group of clients that trains and tests it.
        saved: What it saves over the model that it comes from, as a share of the initial model's resource.
        accuracies: On its group's validation data, round by round; NaN where no client could test it.
        degradations: Likewise, what it was ranked by.
        dropped: The round of the iteration, from 1, in which it was dropped; ``None`` while it is in.
    """

    group: int
    saved: float
    accuracies: list[float] = field(default_factory=list)
    degradations: list[float] = field(default_factory=list)
    dropped: int | None = None


class CandidateGroups(Assignment):
    """Every candidate is trained and tested by its group of clients; the weakest are dropped round by round.

    Who is in which group, and which candidate goes to which group, is said by
    :class:`~lit_fednas.callbacks.PruneByBudgets` when an iteration begins (:meth:`begin`), and holds for all of
    its rounds. Of a group those clients take part that are in the round's cohort. A client of a group with several
    candidates trains one after the other.

    After a round's tests the candidates are ranked by their accuracy degradation (:func:`degradation`), and the
    ``drop`` share with the largest leaves, before its updates are sent (Alg. 4.1, lines 22 to 32). The number to
    drop is a share of the candidates that the iteration began with, rounded, and at least one of them stays. (As
    printed, line 25 takes the maximum with one less than all that are left, and would drop all but one at once;
    the text says that with 33 % all but the best are gone after three rounds.)

    Before the first iteration the initial model is trained, or it is measured (:meth:`measure`): all clients train
    and test it as they do with candidates, and nothing of it is used.

    Args:
        drop: Share of an iteration's candidates that is dropped after each round; 0 for none, 1 for all but the
            best after the first round.
        initial_clients: How many clients of the cohort train the initial model in a round; all, if not given.

    Attributes:
        groups: Of clients.
        trials: How the candidates fare, by unit, in the order in which they were made.
        rounds: How many rounds the iteration has had.
        measuring: Whether the initial model is measured.
        accuracy: What the clients' last tests of the initial model came to; ``None`` before, and where no client
            could test it.

    Raises:
        ConfigError: A setting is out of range; told before training: the supernet makes no candidates.
    """

    def __init__(self, drop: float = 0.33, initial_clients: int | None = None) -> None:
        if not 0 <= drop <= 1:
            raise ConfigError(f"assignment.drop: {drop} must be a share, from 0 to 1")
        if initial_clients is not None and initial_clients < 1:
            raise ConfigError(f"assignment.initial_clients: {initial_clients} must be at least 1, or null for all")
        self.drop = drop
        self.initial_clients = initial_clients
        self._reset()

    def _reset(self) -> None:
        self.groups: list[list[int]] = []
        self.trials: dict[str, Trial] = {}
        self.rounds = 0
        self.before = 0.0
        self.fuse = True
        self.measuring = False
        self.accuracy: float | None = None

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Forgets the iteration."""
        if not isinstance(supernet, PrunedSequence):
            raise ConfigError(
                f"model.assignment: CandidateGroups tries candidates, of which {type(supernet).__name__} has "
                f"none; use the supernet PrunedSequence, or another assignment"
            )
        self._supernet = supernet
        self._population = population
        self._reset()

    # ---- an iteration ---------------------------------------------------------------------------------

    def measure(self) -> None:
        """Lets all clients train and test the initial model in the next round, without using what they trained."""
        self.measuring = True

    def begin(
        self,
        groups: Sequence[Sequence[int]],
        scheduled: Mapping[str, int],
        saved: Mapping[str, float],
        before: float,
        fuse: bool = True,
    ) -> None:
        """Begins an iteration.

        Args:
            groups: The clients of each group.
            scheduled: The group of each candidate, by its unit.
            saved: What each candidate saves, as a share of the initial model's resource.
            before: The accuracy of the model that they come from.
            fuse: Whether updates are used at all; if not, candidates are tested and none is trained (the zero
                rounds of Fig. 7).
        """
        self._reset()
        self.groups = [list(group) for group in groups]
        self.trials = {unit: Trial(group, saved[unit]) for unit, group in scheduled.items()}
        self.before = before
        self.fuse = fuse

    @property
    def live(self) -> list[str]:
        """The units of the candidates that have not been dropped."""
        return [unit for unit, trial in self.trials.items() if trial.dropped is None]

    @property
    def best(self) -> str:
        """The unit of the candidate that the last round ranked first, of those that are left."""
        return self._ranked()[0]

    def _ranked(self) -> list[str]:
        """The units of the candidates that are left, the smallest degradation first; ties as they were made."""
        last = {unit: self.trials[unit].degradations[-1:] or [math.inf] for unit in self.live}
        return sorted(last, key=lambda unit: last[unit][0])

    # ---- a round --------------------------------------------------------------------------------------

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """The newest model for everybody: what happens where no iteration has begun."""
        return [self._newest] * len(cohort)

    def parts(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Part]:
        """The candidates that are left, for those of their groups that are in the cohort."""
        if not self.trials:
            asked = len(cohort) if self.measuring else min(self.initial_clients or len(cohort), len(cohort))
            some = sorted(rng.choice(len(cohort), size=asked, replace=False)) if asked < len(cohort) else None
            chosen = list(cohort) if some is None else [cohort[place] for place in some]
            return super().parts(round, chosen, space, rng)
        there = set(cohort)
        return [
            Part(client, self._arch(unit), self.trials[unit].group)
            for unit in self.live
            for client in self.groups[self.trials[unit].group]
            if client in there
        ]

    def withheld(self, results: Sequence[ClientResult]) -> set[Any]:
        """Ranks the candidates by the round's tests, and drops the weakest."""
        if not self.trials:
            found = fused_accuracy(results)
            self.accuracy = None if math.isnan(found) else found
            return {self._newest} if self.measuring else set()
        self.rounds += 1
        for unit in self.live:
            trial = self.trials[unit]
            accuracy = fused_accuracy([result for result in results if result.task.arch == self._arch(unit)])
            trial.accuracies.append(accuracy)
            if math.isnan(accuracy):
                known = trial.degradations[-1] if trial.degradations else math.inf
                log.warning("candidate %s: no client of its group could test it in this round", unit)
                trial.degradations.append(known)
            else:
                trial.degradations.append(degradation(self.before, accuracy, trial.saved))
        ranked = self._ranked()
        dropped = ranked[len(ranked) - self._number_to_drop(len(ranked)) :]
        for unit in dropped:
            self.trials[unit].dropped = self.rounds
        return {self._arch(unit) for unit in (dropped if self.fuse else ranked)}

    def _number_to_drop(self, left: int) -> int:
        if self.drop == 0:
            return 0
        return min(max(1, round(self.drop * len(self.trials))), left - 1)

    def _arch(self, unit: str) -> Model:
        return Model(len(self._supernet.models), unit)

    @property
    def _newest(self) -> Model:
        return Model(len(self._supernet.models) - 1)

    def deployed(self, client: int) -> Model:
        """The largest model that a client's tier can afford; the newest, and smallest, where there are no tiers.

        Raises:
            ConfigError: The tier cannot afford any of them.
        """
        tier = self._population.tier(client)
        if tier is None:
            return self._newest
        costs = ArchitectureCosts(self._supernet)
        fitting = [arch for arch in self._supernet.space.each() if costs.excess(arch, tier) == 0]
        if not fitting:
            raise ConfigError(
                f"model.tiers: no model of the sequence fits tier {tier.name!r} as yet; raise its limits, or "
                "prune on"
            )
        return fitting[-1]

    # ---- checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The iteration that is under way."""
        return {
            "groups": copy.deepcopy(self.groups),
            "trials": {unit: copy.deepcopy(vars(trial)) for unit, trial in self.trials.items()},
            "rounds": self.rounds,
            "before": self.before,
            "fuse": self.fuse,
            "measuring": self.measuring,
            "accuracy": self.accuracy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back."""
        if set(state) != set(self.state_dict()):
            raise CheckpointError(
                "assignment: the checkpoint holds no groups for CandidateGroups; use the assignment that the run "
                "was started with"
            )
        self.groups = copy.deepcopy(state["groups"])
        self.trials = {unit: Trial(**copy.deepcopy(trial)) for unit, trial in state["trials"].items()}
        self.rounds, self.before, self.fuse = state["rounds"], state["before"], state["fuse"]
        self.measuring, self.accuracy = state["measuring"], state["accuracy"]


def fused_accuracy(results: Sequence[ClientResult]) -> float:
    """The mean of clients' accuracies, weighted by the examples that they tested on (section 4.3), or NaN."""
    tested = [result for result in results if result.answered and result.num_tested]
    count = sum(result.num_tested for result in tested)
    return sum(result.accuracy * result.num_tested for result in tested) / count if count else math.nan


def degradation(before: float, accuracy: float, saved: float) -> float:
    """The accuracy that a candidate loses per resource that it saves (section 4.3, "acc_degradation").

    Args:
        before: Accuracy of the model that it comes from.
        accuracy: Its own.
        saved: What it saves, above 0; here as a share of the initial model's, which changes no order.

    Example:
        >>> degradation(0.75, 0.5, 0.125)
        2.0
    """
    return (before - accuracy) / saved
