"""Exhaustive search of a small space."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod


@checked("search.method")
@dataclass(frozen=True)
class Exhaustive(SearchMethod):
    """Evaluates all architectures of the tier in the order of their genes, and so finds the true front.

    Args:
        limit: Maximum size of the space; the search refuses a larger one.
    """

    limit: PositiveInt = 20_000

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        space = feasible.space
        if space.size > self.limit:
            raise ConfigError(
                f"search.method: {space.size:,} architectures exceed the limit, {self.limit:,}; raise it, or use NSGA2"
            )
        yield [arch for arch in space.each() if feasible.fits(arch)]
