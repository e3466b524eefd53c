"""Random draws from a pool that favour cheap architectures, so that the same computation buys more rounds."""

import logging
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.pools import Pool, PoolLimit, PoolOfTiers, WholeSpace
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeFloat, checked
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population

log = logging.getLogger(__name__)


@checked("assignment")
@dataclass(eq=False)
class CostWeighted(Assignment):
    """Draws for each client an architecture within its tier's limits, with a chance proportional to ``cost ** -power``.

    With ``power`` 1 all architectures receive the same computation in the long run; with 0 all are equally likely.

    Args:
        pool: The pool of architectures to draw from.
        power: The exponent of the inverse cost, at least 0.
        cost: The cost by which architectures are weighted.

    Raises:
        ConfigError: ``power`` is negative, or (before training) no architecture of the pool fits a tier.
    """

    depends_on = "client"
    reads = (PoolLimit,)

    pool: Pool = field(default_factory=WholeSpace)
    power: NonNegativeFloat = 1.0
    cost: Literal["macs", "parameters", "bytes"] = "macs"

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self.pools = PoolOfTiers(self.pool, self._costs, population, self.cost, self.power)
        for tier in self.pools.tiers:
            archs, chances = self.pools.of_tier(tier)
            values = np.array([self._costs.cost(arch, self.cost) for arch in archs])
            log.info(
                "assignment: %d architectures for tier %s, %g to %g %s, on average %.4g",
                *(len(archs), tier.name, min(values), max(values), self.cost, values @ chances),
            )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        limit = round.values.get(PoolLimit)
        max_cost = inf if limit is None else limit.cost
        return [round.task(client, self.pools.draw(client, round.rng, max_cost)) for client in round.cohort]
