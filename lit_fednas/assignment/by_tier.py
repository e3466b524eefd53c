"""One architecture per tier of devices, the same in every round.

FedHeN's simple and complex devices (section 2), the fixed levels of HeteroFL (Diao et al., 2021, section 3.2) and
FjORD's greatest widths p_max (Horvath et al., 2021, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from lit_fednas.assignment.base import Round, TierAssignment
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

_MAX_ENUMERATED = 4096


class ByTier(TierAssignment):
    """Every client trains its tier's architecture.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or an architecture as the space writes it; if not given, the
            most expensive that its limits allow.

    Raises:
        ConfigError: There are no tiers; a tier has no architecture, or one that it cannot afford (reported before
            training).

    Example:
        >>> from lit_fednas.supernets import EarlyExitResNet
        >>> net = EarlyExitResNet((3, 16, 16), 10, width=8)
        >>> tiers = (Tier("simple", {"macs": 2e6}), Tier("complex", {"macs": 3e6}))
        >>> by_tier = ByTier()
        >>> by_tier.setup(net, Population(2, tiers, (0, 1)))
        >>> [str(by_tier.deployed(client)) for client in (0, 1)]
        ['exits: 2', 'exits: 2,4']
    """

    def __init__(self, archs: Mapping[str, str] | None = None) -> None:
        self.archs = archs

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self.of_tier = tier_architectures(supernet, population, self.archs)

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.tier_value(client)) for client in round.cohort]


def tier_architectures(
    supernet: Supernet, population: Population, archs: Mapping[str, str] | None, field: str = "archs"
) -> dict[str, Any]:
    """Returns the architecture of every tier.

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
        return {tier.name: _most_expensive(supernet.space, costs, tier, field) for tier in population.tiers}
    archs_of_tiers = {}
    for tier in population.tiers:
        archs_of_tiers[tier.name] = arch = supernet.space.named(archs[tier.name])
        if costs.excess(arch, tier) > 0:
            limits = ", ".join(f"{name} {limit:g}" for name, limit in tier.at_most.items())
            raise ConfigError(
                f"assignment.{field}.{tier.name}: {archs[tier.name]!r} is outside of the tier's limits "
                f"({limits}); choose another architecture, or other limits in model.tiers"
            )
    return archs_of_tiers


def _most_expensive(space: SearchSpace[Any], costs: ArchitectureCosts, tier: Tier, field: str) -> Any:
    """Returns the affordable architecture with the highest cost of the kind that the tier limits first."""
    if space.size > _MAX_ENUMERATED:
        raise ConfigError(
            f"assignment.{field}: is null, and the space has {space.size} architectures, too many to compare; "
            f"give {field}, one per tier"
        )
    fitting = [arch for arch in space.each() if costs.excess(arch, tier) == 0]
    if not fitting:
        raise ConfigError(
            f"model.tiers: no architecture fits tier {tier.name!r}; raise its limits, or give a smaller supernet"
        )
    cost = (*tier.limited, "macs")[0]
    return max(fitting, key=lambda arch: costs.cost(arch, cost))
