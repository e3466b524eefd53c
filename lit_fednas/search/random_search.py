"""Random search: the baseline that every other method must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod


@dataclass(frozen=True)
class RandomSearch(SearchMethod):
    """Distinct architectures of the tier, drawn at random.

    Args:
        sample: How many per generation; it changes nothing but how often figures are written.
    """

    sample: int = 64

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise ConfigError(f"search.method.sample: {self.sample} must be at least 1")

    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        """Draws until the tier is exhausted."""
        known: set[object] = set()
        while drawn := feasible.distinct(known, self.sample, rng):
            yield drawn
