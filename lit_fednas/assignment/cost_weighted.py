"""Architectures drawn by their cost: cheap networks often, so that the same computation buys more rounds."""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.pools import Pool, WholeSpace
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeFloat, checked
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

log = logging.getLogger(__name__)

_EVERYBODY = Tier("*", {})  # where there are no tiers


@checked("assignment")
class CostWeighted(Assignment):
    """Each client's architecture is drawn from a pool with a probability proportional to ``cost ** -power``.

    A client draws from those that its tier affords. With ``power`` 1 each architecture is given the same computation in
    the long run; with 0 all are equally likely, which over the package's pools is uniform over the cost's logarithm.
    What a client's network costs on average is logged before training.

    Args:
        pool: The architectures.
        power: How much more often cheaper ones are drawn.
        cost: What is meant by cost.

    Raises:
        ConfigError: ``power`` is negative, or (before training) no architecture of the pool fits a tier.

    Example:
        >>> from lit_fednas.assignment.pools import Listed
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, 4, stage_widths=[8], depths=[0, 1], ratios=[0.25, 0.5], divisor=1)
        >>> assignment = CostWeighted(Listed(["smallest", "largest"]))
        >>> assignment.setup(net, Population(1))
        >>> archs, chances = assignment.chances(0)
        >>> [round(float(chance * net.macs(arch))) for arch, chance in zip(archs, chances)]
        [14402, 14402]
    """

    depends_on = "client"

    def __init__(
        self,
        pool: Pool = WholeSpace(),
        power: NonNegativeFloat = 1.0,
        cost: Literal["macs", "parameters", "bytes"] = "macs",
    ) -> None:
        self.pool = pool
        self.power = power
        self.cost = cost

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._drawn_for: Any = None  # the space whose pool is known; a supernet that grows gets another
        for tier in population.tiers or (_EVERYBODY,):
            archs, chances = self._of_tier(tier)
            values = self._values(archs)
            log.info(
                "assignment: %d architectures for tier %s, %g to %g %s, on average %.4g",
                *(len(archs), tier.name, min(values), max(values), self.cost, values @ chances),
            )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        tasks = []
        for client in round.cohort:
            archs, chances = self.chances(client)
            tasks.append(round.task(client, archs[int(round.rng.choice(len(archs), p=chances))]))
        return tasks

    def chances(self, client: int) -> tuple[list[Any], np.ndarray]:
        """Returns the architectures that a client may train, and the probability of each, float64 ``[archs]``."""
        return self._of_tier(self._population.tier(client) or _EVERYBODY)

    def _of_tier(self, tier: Tier) -> tuple[list[Any], np.ndarray]:
        space = self._supernet.space
        if self._drawn_for is not space:
            self._costs = ArchitectureCosts(self._supernet)
            self._pool = self.pool.architectures(self._costs, self.cost)
            self._known: dict[str, tuple[list[Any], np.ndarray]] = {}
            self._drawn_for = space
        if tier.name not in self._known:
            archs = [arch for arch in self._pool if self._costs.excess(arch, tier) == 0]
            if not archs:
                raise ConfigError(
                    f"assignment.pool: no architecture of {type(self.pool).__name__} fits tier {tier.name!r} ({tier}); "
                    f"raise the tier's limits in model.tiers, or give cheaper ones"
                )
            weights = self._values(archs) ** -self.power
            self._known[tier.name] = archs, weights / weights.sum()
        return self._known[tier.name]

    def _values(self, archs: list[Any]) -> np.ndarray:
        return np.array([self._costs.cost(arch, self.cost) for arch in archs], dtype=float)
