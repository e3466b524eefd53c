"""What ``sequence.json`` says of a run that prunes a network step by step (``lit_fednas.records.models``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lit_fednas.callbacks.candidate_trials import CandidateTrials
from lit_fednas.costs import RoundCost
from lit_fednas.supernets import Model, PrunedSequence, UnitCounts


class SequenceRecord:
    """The models so far, and the iteration that is under way.

    Attributes:
        entries: Of the models so far.
        under_way: What is known of the iteration that is under way before its first round.
        spent: What clients have spent since the last model.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.under_way: dict[str, Any] | None = None
        self.spent = RoundCost()

    @property
    def initial(self) -> float:
        """What the initial model takes of the limited resource; NaN before it is known."""
        return float(self.entries[0]["resource"]) if self.entries else math.nan

    @property
    def newest(self) -> dict[str, Any]:
        """The newest model's entry; empty before there is one."""
        return self.entries[-1] if self.entries else {}

    def add(self, sequence: PrunedSequence, arch: Model, resource: float, entry: Mapping[str, Any]) -> None:
        """Adds a model's entry, with what it takes and what its iteration has cost."""
        cost = sequence.cost(arch)
        self.entries.append(
            {
                **entry,
                "resource": resource,
                "macs": cost.macs,
                "parameters": cost.parameters,
                "bytes": cost.bytes,
                "sizes": sequence.sizes(arch),
                "costs": asdict(self.spent),
            }
        )
        self.spent = RoundCost()

    def described(self, sequence: PrunedSequence, trials: CandidateTrials) -> dict[str, Any]:
        """Returns the entry of the iteration that is under way."""
        assert self.under_way is not None
        candidates = []
        for cut in sequence.cuts:
            trial = trials.trials[cut.unit]
            candidates.append(
                {
                    "unit": cut.unit,
                    "removed": dict(cut.removed),
                    "resource": cut.resource,
                    "macs": sequence.cost(UnitCounts.of(cut.sizes)).macs,
                    "group": trial.group,
                    "accuracies": [None if math.isnan(value) else value for value in trial.accuracies],
                    "degradations": [None if math.isinf(value) else value for value in trial.degradations],
                    "dropped": trial.dropped,
                }
            )
        costs = asdict(self.spent)
        return {**self.under_way, "rounds": trials.rounds, "candidates": candidates, "costs": costs}

    def to_plain(self) -> dict[str, Any]:
        """Returns plain values, for checkpoints."""
        return {"entries": list(self.entries), "under_way": self.under_way, "spent": asdict(self.spent)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SequenceRecord:
        """Restores a record from what :meth:`to_plain` returned; further values are left out."""
        record = cls()
        record.entries, record.under_way = list(values["entries"]), values["under_way"]
        record.spent = RoundCost(**values["spent"])
        return record


def empty_entry(number: int, first_round: int | None, budget: float | None) -> dict[str, Any]:
    """Returns an iteration's entry before its first round."""
    return {
        "number": number,
        "first_round": first_round,
        "budget": budget,
        "rounds": 0,
        "groups": [],
        "candidates": [],
    }
