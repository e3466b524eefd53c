"""Assignments that look at the space alone, and what they plan."""

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
    """The architectures of a round's plan, in its order."""
    return [task.arch for task in plan(assignment, round, cohort, space, rng)]


def set_up(assignment: Assignment, space: SearchSpace, num_clients: int) -> None:
    """Sets an assignment up that looks at the space alone, for clients without tiers."""
    net: Any = SimpleNamespace(space=space)
    assignment.setup(net, Population(num_clients))
