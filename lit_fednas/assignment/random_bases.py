"""Base networks drawn anew each round: how Split-Mix keeps clients of all budgets training all of them.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): a client trains as many base networks as its budget allows, other ones in every round, so
that each base network sees the data of all clients in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases
from lit_fednas.tiers import Population


class RandomBases(ByTier):
    """Every client trains as many base networks as its tier can.

    The draw is balanced over the cohort: the base networks are shuffled once a round, and the clients go round
    that list in the cohort's order, each taking the next ones. So a client has no base network twice, and within
    a round no base network is trained by two clients more than another.

    Args:
        counts: Per tier how many its clients train; the most that its limits allow by default. Without tiers, all.

    Raises:
        ConfigError: Before training: the supernet has no base networks; the counts do not name the tiers; a count
            is not 1 to the number of base networks, or above the tier's limits; a tier cannot afford one.
    """

    supernet_kind: ClassVar[type] = BaseNetworks
    depends_on = "cohort"

    setting: ClassVar[str] = "counts"

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(None if counts is None else {tier: str(count) for tier, count in counts.items()})

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        if population.tiers or self.archs is not None:
            super().setup(supernet, population)
        else:
            Assignment.setup(self, supernet, population)

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        total = self._supernet.count
        order = round.rng.permutation(total).tolist()
        tasks, first = [], 0
        for client in round.cohort:
            count = len(self.deployed(client).members)
            bases = sorted(order[(first + step) % total] for step in range(count))
            tasks.append(round.task(client, Bases(tuple(bases))))
            first += count
        return tasks

    @override
    def deployed(self, client: int) -> Bases:
        """Returns as many base networks as the client's tier can run: the first ones, which are evaluated."""
        return super().deployed(client) if self._population.tiers else self._supernet.space.largest

    @override
    def named(self, text: str) -> Bases:
        if not 1 <= int(text) <= self._supernet.count:
            raise ConfigError(f"assignment.counts: {text} must be 1 to {self._supernet.count}, the number of bases")
        return self._supernet.space.first(int(text))
