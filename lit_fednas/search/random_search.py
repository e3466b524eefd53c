"""The baseline: architectures drawn at random."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod


@checked("search.method")
@dataclass(frozen=True)
class RandomSearch(SearchMethod):
    """Distinct architectures of the tier, drawn at random: the baseline that every other method must beat.

    It begins with the smallest and the largest architecture and those of the run's evaluation that fit the tier.

    Args:
        sample: How many per generation; it changes nothing but how often figures are written.
    """

    sample: PositiveInt = 64

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        known: set[object] = set()
        while drawn := feasible.distinct(known, self.sample, rng):
            yield drawn
