"""One architecture per tier of devices.

FedHeN's simple and complex devices (section 2), HeteroFL's fixed levels (Diao et al., 2021, section 3.2), FjORD's
greatest widths p_max (Horvath et al., 2021, section 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import EVERYBODY, Population, Tier

_MAX_ENUMERATED = 4096


@dataclass(eq=False)
class ByTier(Assignment):
    """Every client trains its tier's architecture.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or an architecture as the space writes it; if not given, the
            most expensive that its limits allow.

    Attributes:
        of_tier: The architecture of each tier, by its name; filled in :meth:`setup`.

    Raises:
        ConfigError: Before training: there are no tiers, or a tier has no architecture or one beyond its limits.

    Example:
        >>> from lit_fednas.supernets import EarlyExitResNet
        >>> net = EarlyExitResNet((3, 16, 16), 10, width=8)
        >>> tiers = (Tier("simple", {"macs": 2e6}), Tier("complex", {"macs": 3e6}))
        >>> by_tier = ByTier()
        >>> by_tier.setup(net, Population(2, tiers, (0, 1)))
        >>> [str(by_tier.deployed(client)) for client in (0, 1)]
        ['exits: 2', 'exits: 2,4']
    """

    depends_on: ClassVar[Literal["client", "cohort", "reports"]] = "client"
    #: The argument that names what a tier trains, for errors.
    setting: ClassVar[str] = "archs"
    #: Whether it is refused where there are no tiers; else all clients are of one without limits.
    needs_tiers: ClassVar[bool] = True

    archs: Mapping[str, str] | None = None

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        if not population.tiers and (self.needs_tiers or self.archs is not None):
            raise ConfigError(
                "model.tiers: is null, and the assignment goes by tiers; set it, for instance to ArchitectureTiers"
            )
        tiers = population.tiers or (EVERYBODY,)
        names = [tier.name for tier in tiers]
        archs = dict.fromkeys(names) if self.archs is None else self.archs
        if set(archs) != set(names):
            raise ConfigError(
                f"assignment.{self.setting}: names {', '.join(sorted(archs)) or 'no tier'}; give one for "
                f"each of: {', '.join(names)}"
            )
        self.of_tier = {}
        for tier in tiers:
            name = archs[tier.name]
            arch = self._most_expensive(tier) if name is None else self.named(name)
            if self._costs.excess(arch, tier) > 0:
                raise ConfigError(
                    f"assignment.{self.setting}.{tier.name}: {name} is outside of the tier's limits "
                    f"({tier}); choose another, or other limits in model.tiers"
                )
            self.of_tier[tier.name] = arch

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.deployed(client)) for client in round.cohort]

    @override
    def deployed(self, client: int) -> Any:
        return self.of_tier[self._population.tier(client).name]

    def named(self, text: str) -> Any:
        """Returns what the setting names, or raises ``ConfigError``."""
        return self._supernet.space.named(text)

    def _most_expensive(self, tier: Tier) -> Any:
        """Returns the affordable architecture with the highest cost of the kind that the tier limits first."""
        space = self._supernet.space
        if space.size > _MAX_ENUMERATED:
            raise ConfigError(
                f"assignment.{self.setting}: is null, and the space has {space.size} architectures, too many to "
                f"compare; give {self.setting}, one per tier"
            )
        fitting = [arch for arch in space.each() if self._costs.excess(arch, tier) == 0]
        if not fitting:
            raise ConfigError(
                f"model.tiers: no architecture fits tier {tier.name!r}; raise its limits, or give a smaller supernet"
            )
        cost = (*tier.limited, "macs")[0]
        return max(fitting, key=lambda arch: self._costs.cost(arch, cost))
