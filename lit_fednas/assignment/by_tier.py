"""One architecture per tier of devices: who is able to trains more, in every round the same.

FedHeN's simple and complex devices (section 2), the fixed levels of HeteroFL (Diao et al., 2021, section 3.2) and
FjORD's greatest widths p_max (Horvath et al., 2021, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

_MOST_LOOKED_AT = 4096


class ByTier(Assignment):
    """Every client trains its tier's architecture.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or an architecture as the space writes it; if not given, the
            dearest that its limits allow.

    Raises:
        ConfigError: There are no tiers; a tier has no architecture, or one that it cannot afford (told before
            training).

    Example:
        >>> from lit_fednas.supernets import EarlyExitResNet
        >>> net = EarlyExitResNet((3, 16, 16), 10, width=8)
        >>> tiers = (Tier("simple", {"macs": 2e6}), Tier("complex", {"macs": 3e6}))
        >>> by_tier = ByTier()
        >>> by_tier.setup(net, Population(2, tiers, (0, 1)))
        >>> [str(arch) for arch in by_tier.assign(0, [0, 1], net.space, np.random.default_rng(0))]
        ['exits: 2', 'exits: 2,4']
    """

    def __init__(self, archs: Mapping[str, str] | None = None) -> None:
        self.archs = archs

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Finds each tier's architecture."""
        self._population = population
        self.of_tier = tier_architectures(supernet, population, self.archs)

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Looks them up."""
        tiers = [self._population.tier(client) for client in cohort]
        return [self.of_tier[tier.name] for tier in tiers if tier is not None]

    def deployed(self, client: int) -> Any:
        """Its tier's architecture."""
        tier = self._population.tier(client)
        assert tier is not None
        return self.of_tier[tier.name]


def tier_architectures(
    supernet: Supernet, population: Population, archs: Mapping[str, str] | None, field: str = "archs"
) -> dict[str, Any]:
    """The architecture of every tier.

    Args:
        supernet: What can be trained.
        population: The clients and their tiers.
        archs: As in :class:`ByTier`.
        field: The assignment's setting that they come from, for errors.

    Raises:
        ConfigError: As in :class:`ByTier`.
    """
    if not population.tiers:
        raise ConfigError(
            "model.tiers: is null, and the assignment goes by tiers; set it, for instance to ArchitectureTiers"
        )
    names = [tier.name for tier in population.tiers]
    if archs is not None and set(archs) != set(names):
        raise ConfigError(
            f"assignment.{field}: names {', '.join(sorted(archs)) or 'no tier'}; give one architecture for each "
            f"of: {', '.join(names)}"
        )
    costs = ArchitectureCosts(supernet)
    if archs is None:
        return {tier.name: _dearest(supernet.space, costs, tier, field) for tier in population.tiers}
    found = {}
    for tier in population.tiers:
        found[tier.name] = arch = supernet.space.named(archs[tier.name])
        if costs.excess(arch, tier) > 0:
            limits = ", ".join(f"{name} {limit:g}" for name, limit in tier.at_most.items())
            raise ConfigError(
                f"assignment.{field}.{tier.name}: {archs[tier.name]!r} is outside of the tier's limits "
                f"({limits}); choose another architecture, or other limits in model.tiers"
            )
    return found


def _dearest(space: SearchSpace[Any], costs: ArchitectureCosts, tier: Tier, field: str) -> Any:
    """The architecture that costs most of what the tier limits first, among those that it affords."""
    if space.size > _MOST_LOOKED_AT:
        raise ConfigError(
            f"assignment.{field}: is null, and the space has {space.size} architectures to look at; give "
            f"{field}, one per tier"
        )
    fitting = [arch for arch in space.each() if costs.excess(arch, tier) == 0]
    if not fitting:
        raise ConfigError(
            f"model.tiers: no architecture fits tier {tier.name!r}; raise its limits, or give a smaller supernet"
        )
    cost = (*tier.limited, "macs")[0]
    return max(fitting, key=lambda arch: costs.cost(arch, cost))
