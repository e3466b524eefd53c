"""One architecture per tier of devices.

FedHeN's simple and complex devices (section 2), HeteroFL's fixed levels (Diao et al., 2021, section 3.2), FjORD's
greatest widths p_max (Horvath et al., 2021, section 4), FedRolex and Split-Mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases
from lit_fednas.supernets.widths import Width, WidthSupernet
from lit_fednas.tiers import ArchitectureCosts, Population, Tier

_MAX_ENUMERATED = 4096


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

    def __init__(self, archs: Mapping[str, str] | None = None) -> None:
        self.archs = archs

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        if not population.tiers:
            raise ConfigError(
                "model.tiers: is null, and the assignment goes by tiers; set it, for instance to ArchitectureTiers"
            )
        names = [tier.name for tier in population.tiers]
        archs = dict.fromkeys(names) if self.archs is None else self.archs
        if set(archs) != set(names):
            raise ConfigError(
                f"assignment.{self.setting}: names {', '.join(sorted(archs)) or 'no tier'}; give one for "
                f"each of: {', '.join(names)}"
            )
        costs = ArchitectureCosts(supernet)
        self.of_tier = {}
        for tier in population.tiers:
            name = archs[tier.name]
            arch = self._most_expensive(tier, costs) if name is None else self.named(name)
            if costs.excess(arch, tier) > 0:
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
        tier = self._population.tier(client)
        assert tier is not None
        return self.of_tier[tier.name]

    def named(self, text: str) -> Any:
        """Returns what the setting names, or raises ``ConfigError``."""
        return self._supernet.space.named(text)

    def _most_expensive(self, tier: Tier, costs: ArchitectureCosts) -> Any:
        """Returns the affordable architecture with the highest cost of the kind that the tier limits first."""
        space = self._supernet.space
        if space.size > _MAX_ENUMERATED:
            raise ConfigError(
                f"assignment.{self.setting}: is null, and the space has {space.size} architectures, too many to "
                f"compare; give {self.setting}, one per tier"
            )
        fitting = [arch for arch in space.each() if costs.excess(arch, tier) == 0]
        if not fitting:
            raise ConfigError(
                f"model.tiers: no architecture fits tier {tier.name!r}; raise its limits, or give a smaller supernet"
            )
        cost = (*tier.limited, "macs")[0]
        return max(fitting, key=lambda arch: costs.cost(arch, cost))


@checked("assignment")
class RollingWidths(ByTier):
    """Every client trains a window of its tier's width, which rolls over each layer from round to round (FedRolex).

    After Alam, Liu, Yan and Zhang (2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS): so all weights are trained even if no client can hold them all. The window's first unit is
    the number of steps so far; each layer takes it modulo its own number of units. The publication rounds a window's
    number of units down; :meth:`WidthSupernet.sizes` rounds it up.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or a width as the space writes it; the greatest that its limits
            allow if not given.
        step: Units that the window goes on; 0 for a window that stays, as in HeteroFL.
        every: Rounds between two steps.

    Raises:
        ConfigError: A setting is out of range; or, reported before training: the supernet is not cut by width;
            there are no tiers; a tier has no width, one that it cannot afford, or one with a shift.

    Example:
        >>> from lit_fednas.tiers import Population, Tier
        >>> tiers = (Tier("phones", {}), Tier("laptops", {}))
        >>> rolling = RollingWidths({"phones": "width: 0.5", "laptops": "largest"})
        >>> net = WidthSupernet()
        >>> rolling.setup(net, Population(2, tiers, (0, 1)))
        >>> str(rolling.shifted(Width(0.5), shift=3)), str(rolling.shifted(Width(1.0), shift=3))
        ('width: 0.5, shift: 3', 'width: 1')
    """

    supernet_kind: ClassVar[type] = WidthSupernet

    def __init__(
        self, archs: Mapping[str, str] | None = None, step: NonNegativeInt = 1, every: PositiveInt = 1
    ) -> None:
        super().__init__(archs)
        self.step = step
        self.every = every

    @override
    def named(self, text: str) -> Width:
        width = super().named(text)
        if getattr(width, "shift", True):
            raise ConfigError(f"assignment.archs: {text!r} selects its units itself; give 'width: 0.5' or the like")
        return width

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        shift = round.number // self.every * self.step
        return [round.task(client, self.shifted(self.deployed(client), shift)) for client in round.cohort]

    def shifted(self, width: Width, shift: int) -> Width:
        """Returns a width whose window begins at a unit; the whole network has no window."""
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)


class RandomBases(ByTier):
    """Every client trains as many base networks as its tier can, other ones in every round.

    After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
    Customization", ICLR): so each base network sees the data of all clients in time. The draw is balanced: the base
    networks are shuffled once a round, and each client of the cohort takes the next ones of that list.

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
    def deployed(self, client: int) -> Bases:  # the first ones, which are evaluated
        return super().deployed(client) if self._population.tiers else self._supernet.space.largest

    @override
    def named(self, text: str) -> Bases:
        if not 1 <= int(text) <= self._supernet.count:
            raise ConfigError(f"assignment.counts: {text} must be 1 to {self._supernet.count}, the number of bases")
        return self._supernet.space.first(int(text))
