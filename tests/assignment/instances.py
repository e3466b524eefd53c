"""One instance or several of every assignment: what the contract's tests run over.

A new assignment needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable

from lit_fednas.assignment import (
    Assignment,
    FixedArchitecture,
    RandomArchitectures,
    Sandwich,
    Subspaces,
    TrackingSandwich,
)
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import Population

INSTANCES: dict[str, Callable[[], Assignment]] = {
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


class _SpaceOnly:
    """A supernet of which an assignment looks at the space alone."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space


def set_up(assignment: Assignment, space: SearchSpace | Supernet, num_clients: int) -> None:
    """Sets an assignment up for a population without tiers."""
    supernet = space if isinstance(space, Supernet) else _SpaceOnly(space)
    assignment.setup(supernet, Population(num_clients))  # type: ignore[arg-type]
