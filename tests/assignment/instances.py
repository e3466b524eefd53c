"""The assignments of the methods' table, by what they need: what the contract's tests run over.

A new assignment needs a line in ``tests/federation/methods.py``, and its name here; a test fails as long as it has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment import Assignment, RisingPath, TrackingSandwich
from lit_fednas.supernets import SearchSpace
from lit_fednas.testing.assignments import plan
from lit_fednas.tiers import Population
from tests.federation.methods import ASSIGNMENTS


def listed(*names: str) -> dict[str, Callable[[], Assignment]]:
    return {name: ASSIGNMENTS[name] for name in names}


INSTANCES = {
    **listed("largest", "smallest", "random", "sandwich", "tracking", "cost"),
    "pool": lambda: TrackingSandwich(RisingPath(5)),
}
OF_OPERATORS = listed("share", "bytes")
OF_WIDTHS = listed("by-tier", "invariant", "rolling")
OF_BASES = listed("bases")
OF_SUITES = listed("own", "utility")
OF_SEQUENCES = listed("groups")
#: Those that train some of the clients.
FEW_OF_SEQUENCES = listed("few-groups")


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
