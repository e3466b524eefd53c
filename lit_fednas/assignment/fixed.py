"""One architecture for everyone: federated averaging, and SuperFed's baseline iFedAvg (section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import Population


class FixedArchitecture(Assignment):
    """Every client trains the same architecture in every round.

    Args:
        arch: ``largest``, ``smallest``, or an architecture as the space writes it.

    Example:
        >>> from lit_fednas.supernets import Ladder
        >>> FixedArchitecture().assign(0, [3, 5], Ladder(["whole"]), np.random.default_rng(0))
        ['whole', 'whole']
    """

    def __init__(self, arch: str = "largest") -> None:
        self.arch = arch

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Reads the architecture, so that a wrong one is told before training."""
        supernet.space.named(self.arch)
        self._supernet = supernet

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Returns the architecture once per client."""
        return [space.named(self.arch)] * len(cohort)

    def deployed(self, client: int) -> Any:
        """The same architecture."""
        return self._supernet.space.named(self.arch)
