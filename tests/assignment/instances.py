"""One instance or several of every assignment: what the contract's tests run over.

A new assignment needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment import (
    Assignment,
    ByOwnUtility,
    ByTier,
    ByUtility,
    CandidateGroups,
    CostWeighted,
    FixedArchitecture,
    InvariantUnits,
    RandomArchitectures,
    RandomBases,
    RisingPath,
    RollingWidths,
    Sandwich,
    Subspaces,
    TrackingSandwich,
)
from lit_fednas.supernets import SearchSpace
from lit_fednas.testing.assignments import plan
from lit_fednas.tiers import Population

INSTANCES: dict[str, Callable[[], Assignment]] = {
    "cost-weighted": CostWeighted,
    "cost-weighted-path": lambda: CostWeighted(RisingPath(3), power=0.5, cost="bytes"),
    "fixed-largest": FixedArchitecture,
    "fixed-smallest": lambda: FixedArchitecture("smallest"),
    "random": RandomArchitectures,
    "sandwich": Sandwich,
    "tracking-sandwich": TrackingSandwich,
}

#: Those that deal out operators, and want a supernet of operators.
OF_OPERATORS: dict[str, Callable[[], Assignment]] = {
    "subspaces-half": lambda: Subspaces(share=0.5),
    "subspaces-bytes": lambda: Subspaces(at_most=20_000, size="bytes"),
}

#: Those that cut by width, or go by tiers, and want a supernet of widths and tiers.
OF_WIDTHS: dict[str, Callable[[], Assignment]] = {
    "by-tier": lambda: ByTier({"weak": "smallest", "strong": "largest"}),
    "invariant-units": lambda: InvariantUnits({"weak": 0.5, "strong": 1}),
    "rolling-widths": lambda: RollingWidths({"weak": "width: 0.5", "strong": "largest"}),
}

#: Those that deal out base networks, and want a supernet of them and tiers.
OF_BASES: dict[str, Callable[[], Assignment]] = {
    "random-bases": lambda: RandomBases({"weak": 1, "strong": 3}),
}

#: Those that choose among the models of a suite, and want one and tiers.
OF_SUITES: dict[str, Callable[[], Assignment]] = {
    "by-own-utility": ByOwnUtility,
    "by-utility": ByUtility,
    "by-utility-alone": lambda: ByUtility(similar=False),
}

#: Those that try candidates, and want a sequence of pruned models and tiers.
OF_SEQUENCES: dict[str, Callable[[], Assignment]] = {
    "candidate-groups": CandidateGroups,
    "candidate-groups-few": lambda: CandidateGroups(initial_clients=2),
}


class _SpaceOnly:
    """A supernet of which an assignment looks at the space alone."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space


def planned(
    assignment: Assignment, round: int, cohort: Sequence[int], space: SearchSpace, rng: np.random.Generator
) -> list[Any]:
    """The architectures of a round's plan, in its order."""
    return [task.arch for task in plan(assignment, round, cohort, space, rng)]


def set_up(assignment: Assignment, space: SearchSpace, num_clients: int) -> None:
    """Sets an assignment up that looks at the space alone, for clients without tiers."""
    assignment.setup(_SpaceOnly(space), Population(num_clients))  # type: ignore[arg-type]
