"""The baseline: random architectures."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod


@checked("search.method")
@dataclass(frozen=True)
class RandomSearch(SearchMethod):
    """Evaluates distinct random architectures of the tier: the baseline of all other methods.

    It begins with the smallest and the largest architecture and those of the run's evaluation that fit the tier.

    Args:
        sample: Architectures per generation, after which figures are written; it does not change the draws.
    """

    sample: PositiveInt = 64

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        history: set[object] = set()
        while generation := feasible.distinct(history, self.sample, rng):
            yield generation
