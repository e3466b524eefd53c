"""Plans of assignments that read only the space."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from lit_fednas.assignment import Assignment
from lit_fednas.supernets import SearchSpace
from lit_fednas.testing.assignments import plan
from lit_fednas.tiers import Population


def planned(
    assignment: Assignment, round: int, cohort: Sequence[int], space: SearchSpace, rng: np.random.Generator
) -> list[Any]:
    """Returns the architectures of a round's plan, in the plan's order."""
    return [task.arch for task in plan(assignment, round, cohort, space, rng)]


def set_up(assignment: Assignment, space: SearchSpace, num_clients: int) -> None:
    """Sets up an assignment that reads only the space, for clients without tiers."""
    net: Any = SimpleNamespace(space=space)
    assignment.setup(net, Population(num_clients))
