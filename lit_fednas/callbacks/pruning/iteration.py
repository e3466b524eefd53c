"""Iterations of pruning, which rank candidates and drop the weakest early, and their record.

FedNAS, sections 3.3, 4.3 and 5.1, and Alg. 4.1, lines 22 to 32.
"""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from lit_fednas.costs import RoundCost
from lit_fednas.messages import ClientResult, mean_tested
from lit_fednas.supernets import Model, PrunedSequence, UnitCounts

log = logging.getLogger(__name__)


@dataclass
class Trial:
    """The performance of a candidate."""

    group: int  # the number of the group of clients that trains and tests the candidate
    saved: float  # the parent's resource less the candidate's, as a share of the initial model's
    accuracies: list[float] = field(default_factory=list)  # validation accuracy per round; NaN without a test
    degradations: list[float] = field(default_factory=list)  # accuracy degradation per round, which ranks candidates
    dropped: int | None = None  # the iteration's round that dropped the candidate, from 1


@dataclass
class CandidateTrials:
    """The groups of clients in an iteration, and the candidates that they train and test."""

    groups: list[list[int]]  # the clients of each group
    trials: dict[str, Trial]  # trials by the pruned unit, in the order of creation
    before: float  # the parent's accuracy
    fuse: bool = True  # whether updates are used; if not, candidates are only tested (Fig. 7: 0 rounds)
    rounds: int = 0  # the number of finished rounds

    @property
    def live(self) -> list[str]:
        """The units of the remaining candidates."""
        return [unit for unit, trial in self.trials.items() if trial.dropped is None]

    @property
    def best(self) -> str:
        """The unit of the candidate with the smallest degradation."""
        return self.ranked()[0]

    def ranked(self) -> list[str]:
        """Returns the remaining candidates' units by ascending degradation; ties are in the order of creation."""
        degradations = {unit: self.trials[unit].degradations[-1:] or [math.inf] for unit in self.live}
        return sorted(degradations, key=lambda unit: degradations[unit][0])

    def after(self, accuracies: Mapping[str, float], drop: float) -> tuple[Self, list[str]]:
        """Returns the iteration after a round, without the weakest candidates, and the units with unused updates.

        The number of dropped candidates is a share of the iteration's initial candidates, rounded, and at least one
        candidate stays (the paper's text; its line 25 would drop all candidates except one at once).

        Args:
            accuracies: Accuracies of the remaining candidates, by unit; NaN if no client could test a candidate.
            drop: Share of the iteration's candidates that is dropped after each round; 0 keeps all.
        """
        next_trials = copy.deepcopy(self)
        next_trials.rounds += 1
        for unit in self.live:
            trial, accuracy = next_trials.trials[unit], accuracies[unit]
            trial.accuracies.append(accuracy)
            if math.isnan(accuracy):
                log.warning("candidate %s: no client of its group could test it in this round", unit)
                trial.degradations += trial.degradations[-1:] or [math.inf]
            else:  # lost accuracy per saved resource; the paper's units give the same order
                trial.degradations.append((self.before - accuracy) / trial.saved)
        ranking = next_trials.ranked()
        count = 0 if drop == 0 else min(max(1, round(drop * len(self.trials))), len(ranking) - 1)
        dropped_units = ranking[len(ranking) - count :]
        for unit in dropped_units:
            next_trials.trials[unit].dropped = next_trials.rounds
        return next_trials, dropped_units if self.fuse else ranking

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Restores an iteration from the values of ``dataclasses.asdict``."""
        plain = copy.deepcopy(dict(values))
        return cls(**{**plain, "trials": {unit: Trial(**trial) for unit, trial in plain["trials"].items()}})


def fused_accuracy(results: Sequence[ClientResult]) -> float:
    """Returns the mean accuracy of clients, weighted by their numbers of test examples (section 4.3), or NaN."""
    return mean_tested([result for result in results if result.answered], "accuracy")


@dataclass
class SequenceRecord:
    """The entries of all models, the current iteration's, and the clients' costs since the newest model."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    under_way: dict[str, Any] | None = None  # the entry before the iteration's first round
    spent: RoundCost = field(default_factory=RoundCost)

    @property
    def initial(self) -> float:
        """The resource of the initial model; NaN before it is measured."""
        return float(self.entries[0]["resource"]) if self.entries else math.nan

    @property
    def newest(self) -> dict[str, Any]:
        """The newest model's entry; empty before there is one."""
        return self.entries[-1] if self.entries else {}

    def add(self, sequence: PrunedSequence, resource: float, **entry: Any) -> None:
        """Adds the newest model's entry with the costs of its iteration."""
        row, costs = sequence.model_rows()[-1], asdict(self.spent)
        sizes = sequence.sizes(Model(row["number"]))
        self.entries.append({**row, "resource": resource, "sizes": sizes, "costs": costs, **entry})
        self.spent = RoundCost()

    def described(self, sequence: PrunedSequence, trials: CandidateTrials) -> dict[str, Any]:
        """Returns the entry of the current iteration."""
        assert self.under_way is not None
        candidates = []
        for cut in sequence.cuts:
            trial, macs = trials.trials[cut.unit], sequence.cost(UnitCounts.of(cut.sizes)).macs
            row = {"unit": cut.unit, "removed": {cut.unit: cut.removed}, "resource": cut.resource, "macs": macs}
            row |= {"group": trial.group, "dropped": trial.dropped}
            for name, values in {"accuracies": trial.accuracies, "degradations": trial.degradations}.items():
                row[name] = [value if math.isfinite(value) else None for value in values]
            candidates.append(row)
        return {**self.under_way, "rounds": trials.rounds, "candidates": candidates, "costs": asdict(self.spent)}

    def figures(self) -> dict[str, float]:
        """Returns metrics of the newest model; resource and budget are shares of the initial model's."""
        newest = {name: math.nan if value is None else value for name, value in self.newest.items()}
        return {
            "iteration": float(max(0, len(self.entries) - 1)),
            "resource": newest.get("resource", math.nan) / self.initial,
            "budget": (self.under_way or newest).get("budget", math.nan) / self.initial,
            "accuracy": newest.get("accuracy", math.nan),
        }
