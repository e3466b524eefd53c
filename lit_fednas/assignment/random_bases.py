"""Base networks drawn anew each round: how Split-Mix keeps clients of all budgets training all of them.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): a client trains as many base networks as its budget allows, other ones in every round, so
that each base network sees the data of all clients in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Round, TierAssignment
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases, BaseSpace
from lit_fednas.tiers import ArchitectureCosts, Population, Tier


class RandomBases(TierAssignment):
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
    """

    supernet_kind: ClassVar[type] = BaseNetworks

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = counts

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        names = [tier.name for tier in population.tiers]
        if self.counts is not None and set(self.counts) != set(names):
            raise ConfigError(
                f"assignment.counts: names {', '.join(sorted(self.counts)) or 'no tier'}; give one number for "
                f"each of: {', '.join(names) or '(there are no tiers; set model.tiers, or leave counts out)'}"
            )
        costs = ArchitectureCosts(supernet)
        self.of_tier = {tier.name: self._count(tier, self._supernet.space, costs) for tier in population.tiers}

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        total = self._supernet.count
        order = round.rng.permutation(total).tolist()
        tasks, first = [], 0
        for client in round.cohort:
            count = self._count_of(client)
            bases = sorted(order[(first + step) % total] for step in range(count))
            tasks.append(round.task(client, Bases(tuple(bases))))
            first += count
        return tasks

    @override
    def deployed(self, client: int) -> Bases:
        """Returns as many base networks as the client's tier can run: the first ones, which are evaluated."""
        return BaseSpace.first(self._count_of(client))

    def _count_of(self, client: int) -> int:
        return self.tier_value(client) if self._population.tiers else self._supernet.count

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
