"""One architecture per tier of devices.

Used for FedHeN's simple and complex devices (section 2), HeteroFL's fixed levels (Diao et al., 2021, section 3.2), and
FjORD's greatest widths p_max (Horvath et al., 2021, section 4).
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
        archs: Architecture of each tier: ``smallest``, ``largest``, or its text; by default the most expensive allowed.

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

    depends_on: ClassVar[Literal["client", "cohort", "statistics"]] = "client"
    #: The name of the argument with the tiers' architectures, for errors.
    setting: ClassVar[str] = "archs"
    #: Whether a run without tiers is an error; otherwise all clients form one tier without limits.
    needs_tiers: ClassVar[bool] = True

    archs: Mapping[str, str] | None = None

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        if not population.tiers and (self.needs_tiers or self.archs is not None):
            raise ConfigError(
                "model.tiers: is null, and the assignment needs tiers; set it, for instance to ArchitectureTiers"
            )
        tiers = population.tiers or (EVERYBODY,)
        names = [tier.name for tier in tiers]
        archs = dict.fromkeys(names) if self.archs is None else self.archs
        if set(archs) != set(names):
            raise ConfigError(
                f"assignment.{self.setting}: has {', '.join(sorted(archs)) or 'no tier'}; set a value for each of: "
                f"{', '.join(names)}"
            )
        self.of_tier = {}  # architectures by the tier's name
        for tier in tiers:
            name = archs[tier.name]
            arch = self._most_expensive(tier) if name is None else self.named(name)
            if self._costs.excess(arch, tier) > 0:
                raise ConfigError(
                    f"assignment.{self.setting}.{tier.name}: {name} is outside the tier's limits ({tier}); "
                    f"choose another one, or change the limits in model.tiers"
                )
            self.of_tier[tier.name] = arch

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, self.deployed(client)) for client in round.cohort]

    @override
    def deployed(self, client: int) -> Any:
        return self.of_tier[self._population.tier(client).name]

    def named(self, text: str) -> Any:
        """Returns the architecture that a text describes, or raises ``ConfigError``."""
        return self._supernet.space.named(text)

    def _most_expensive(self, tier: Tier) -> Any:
        """Returns the affordable architecture with the highest cost, measured by the tier's first limit."""
        space = self._supernet.space
        if space.size > _MAX_ENUMERATED:
            raise ConfigError(
                f"assignment.{self.setting}: is null, and the space has {space.size} architectures, too many to "
                f"compare; set {self.setting} for each tier"
            )
        affordable = [arch for arch in space.each() if self._costs.excess(arch, tier) == 0]
        if not affordable:
            raise ConfigError(
                f"model.tiers: no architecture fits tier {tier.name!r}; raise its limits, or use a smaller supernet"
            )
        cost = (*tier.limited, "macs")[0]
        return max(affordable, key=lambda arch: self._costs.cost(arch, cost))
