"""Random architectures: SuperFed's "R" of Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.supernets import SearchSpace


class RandomArchitectures(Assignment):
    """Every client trains an architecture drawn from the space, anew each round.

    Example:
        >>> from lit_fednas.supernets import Ladder
        >>> RandomArchitectures().assign(0, [3], Ladder(["whole"]), np.random.default_rng(0))
        ['whole']
    """

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Draws one architecture per client."""
        return [space.sample(rng) for _ in cohort]
