"""Exhaustive search: the true front of a small space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import Proposals, SearchMethod


@dataclass(frozen=True)
class Exhaustive(SearchMethod):
    """Every architecture of the tier, in the order of its genes.

    Args:
        limit: The largest space that is searched.
    """

    limit: int = 20_000

    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        """Yields all at once.

        Raises:
            ConfigError: The space is too large.
        """
        space = feasible.space
        if space.size > self.limit:
            raise ConfigError(
                f"search.method: Exhaustive would evaluate {space.size:,} architectures, limit is {self.limit:,}; "
                f"raise search.method.init_args.limit, or use NSGA2"
            )
        yield [arch for arch in space.each() if feasible.fits(arch)]
