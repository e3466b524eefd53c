"""The iterations of pruning: candidates that are ranked and dropped early, and their record.

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
    """How one candidate performs."""

    group: int  # of clients, which trains and tests it
    saved: float  # the resource that it saves over its parent, as a share of the initial model's
    accuracies: list[float] = field(default_factory=list)  # on its group's validation data, per round; NaN if untested
    degradations: list[float] = field(default_factory=list)  # the values that ranked it, per round
    dropped: int | None = None  # in which round of the iteration, from 1; None if it is still tried


@dataclass
class CandidateTrials:
    """The groups of clients of an iteration, and the candidates that they try."""

    groups: list[list[int]]  # the clients of each
    trials: dict[str, Trial]  # by unit, in the order in which they were made
    before: float  # the accuracy of their parent
    fuse: bool = True  # whether updates are used; if not, candidates are tested and none is trained (Fig. 7: 0 rounds)
    rounds: int = 0  # so far

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
        them stays (the text; line 25 as printed would drop all but one at once).

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
                log.warning("candidate %s: no client of its group could test it in this round", unit)
                trial.degradations += trial.degradations[-1:] or [math.inf]
            else:  # "acc_degradation": accuracy lost per resource saved; as a share, which changes no order
                trial.degradations.append((self.before - accuracy) / trial.saved)
        ranked = after.ranked()
        count = 0 if drop == 0 else min(max(1, round(drop * len(self.trials))), len(ranked) - 1)
        dropped = ranked[len(ranked) - count :]
        for unit in dropped:
            after.trials[unit].dropped = after.rounds
        return after, dropped if self.fuse else ranked

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Restores an iteration from what ``dataclasses.asdict`` returned."""
        plain = copy.deepcopy(dict(values))
        return cls(**{**plain, "trials": {unit: Trial(**trial) for unit, trial in plain["trials"].items()}})


def fused_accuracy(results: Sequence[ClientResult]) -> float:
    """Returns the mean of clients' accuracies, weighted by what was tested (section 4.3), or NaN."""
    return mean_tested([result for result in results if result.answered], "accuracy")


@dataclass
class SequenceRecord:
    """The entries of the models so far, what clients have spent since the last, and the iteration under way."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    under_way: dict[str, Any] | None = None  # as known before the first round
    spent: RoundCost = field(default_factory=RoundCost)

    @property
    def initial(self) -> float:
        """The resource of the initial model; NaN before it is known."""
        return float(self.entries[0]["resource"]) if self.entries else math.nan

    @property
    def newest(self) -> dict[str, Any]:
        """The newest model's entry; empty before there is one."""
        return self.entries[-1] if self.entries else {}

    def add(self, sequence: PrunedSequence, resource: float, **entry: Any) -> None:
        """Adds the newest model's entry, with its costs and those of its iteration."""
        known, costs = sequence.model_rows()[-1], asdict(self.spent)
        sizes = sequence.sizes(Model(known["number"]))
        self.entries.append({**known, "resource": resource, "sizes": sizes, "costs": costs, **entry})
        self.spent = RoundCost()

    def described(self, sequence: PrunedSequence, trials: CandidateTrials) -> dict[str, Any]:
        """Returns the entry of the iteration that is under way."""
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
        """Returns the figures of the newest model, with resource and budget as shares of the initial model's."""
        newest = {name: math.nan if value is None else value for name, value in self.newest.items()}
        return {
            "iteration": float(max(0, len(self.entries) - 1)),
            "resource": newest.get("resource", math.nan) / self.initial,
            "budget": (self.under_way or newest).get("budget", math.nan) / self.initial,
            "accuracy": newest.get("accuracy", math.nan),
        }
