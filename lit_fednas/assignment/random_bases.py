"""Base networks drawn anew each round: how Split-Mix keeps clients of all budgets training all of them.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): a client trains as many base networks as its budget allows, other ones in every round, so
that each base network sees the data of all clients in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases, BaseSpace
from lit_fednas.tiers import ArchitectureCosts, Population, Tier


class RandomBases(Assignment):
    """Every client trains as many base networks as its tier can.

    The draw is balanced over the cohort: the base networks are shuffled once a round, and the clients go round
    that list in the cohort's order, each taking the next ones. So a client has no base network twice, and within
    a round no base network is trained by two clients more than another.

    Args:
        counts: Per tier how many its clients train; if not given, the most that its limits allow. Without tiers
            everybody trains all.

    Raises:
        ConfigError: The supernet has no base networks; the counts do not name the tiers, or one is not among 1 to
            the number of base networks, or above the tier's limits; a tier cannot afford one (told before
            training).

    Example:
        >>> from lit_fednas.supernets.width.cnn import SlicedCNN
        >>> bases = RandomBases({"phones": 1, "laptops": 3})
        >>> tiers = (Tier("phones", {}), Tier("laptops", {}))
        >>> net = BaseNetworks((3, 8, 8), 10, SlicedCNN((8, 16)), count=4)
        >>> bases.setup(net, Population(2, tiers, (0, 1)))
        >>> [str(arch) for arch in bases.assign(0, [0, 1], net.space, np.random.default_rng(0))]
        ['bases: 2', 'bases: 0,1,3']
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = counts

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Finds each tier's number."""
        if not isinstance(supernet, BaseNetworks):
            raise ConfigError(
                f"model.assignment: RandomBases deals out base networks, {type(supernet).__name__} has none; use "
                f"the supernet BaseNetworks, or another assignment"
            )
        names = [tier.name for tier in population.tiers]
        if self.counts is not None and set(self.counts) != set(names):
            raise ConfigError(
                f"assignment.counts: names {', '.join(sorted(self.counts)) or 'no tier'}; give one number for "
                f"each of: {', '.join(names) or '(there are no tiers; set model.tiers, or leave counts out)'}"
            )
        self._population = population
        self._all = supernet.count
        costs = ArchitectureCosts(supernet)
        self.of_tier = {tier.name: self._count(tier, supernet.space, costs) for tier in population.tiers}

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Goes round the shuffled base networks."""
        order = rng.permutation(self._all).tolist()
        place = 0
        archs = []
        for client in cohort:
            tier = self._population.tier(client)
            count = self._all if tier is None else self.of_tier[tier.name]
            archs.append(Bases(tuple(sorted(order[(place + next) % self._all] for next in range(count)))))
            place += count
        return archs

    def deployed(self, client: int) -> Bases:
        """As many base networks as its tier can run, the first ones, which are evaluated for that number."""
        tier = self._population.tier(client)
        return BaseSpace.first(self._all if tier is None else self.of_tier[tier.name])

    def _count(self, tier: Tier, space: BaseSpace, costs: ArchitectureCosts) -> int:
        if self.counts is None:
            for count in range(space.count, 0, -1):
                if costs.excess(space.first(count), tier) == 0:
                    return count
            raise ConfigError(
                f"model.tiers: tier {tier.name!r} cannot afford one base network; raise its limits, or "
                f"supernet.count, which makes them smaller"
            )
        count = self.counts[tier.name]
        if not 1 <= count <= space.count:
            raise ConfigError(
                f"assignment.counts.{tier.name}: {count} must be 1 to {space.count}, the number of base networks"
            )
        if costs.excess(space.first(count), tier) > 0:
            limits = ", ".join(f"{name} {limit:g}" for name, limit in tier.at_most.items())
            raise ConfigError(
                f"assignment.counts.{tier.name}: {count} base networks are outside of the tier's limits "
                f"({limits}); choose another number, or other limits in model.tiers"
            )
        return count
