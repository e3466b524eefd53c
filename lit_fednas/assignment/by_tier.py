"""One architecture per tier of devices.

FedHeN's simple and complex devices (section 2), HeteroFL's fixed levels (Diao et al., 2021, section 3.2), FjORD's
greatest widths p_max (Horvath et al., 2021, section 4), FedRolex, Split-Mix, and FLuID's invariant dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, log
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, UnitChangesReport
from lit_fednas.ranges import NonNegativeInt, PositiveInt, Range, checked
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.side_by_side import BaseNetworks, Bases
from lit_fednas.supernets.widths import UnitMask, Width, WidthArch, WidthSupernet
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


@checked("assignment")
@dataclass(eq=False)
class RollingWidths(ByTier):
    """Every client trains a window of its tier's width, which rolls over each layer from round to round (FedRolex).

    After Alam, Liu, Yan and Zhang (2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS): all weights are trained even if no client can hold them all. The window's first unit is
    the number of steps so far, modulo each layer's number of units; that of units is rounded up, in the paper down.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or a width as the space writes it; the greatest that its limits
            allow if not given.
        step: Units that the window goes on; 0 for a window that stays, as in HeteroFL.
        every: Rounds between two steps.

    Raises:
        ConfigError: A setting is out of range; before training: as :class:`ByTier`, the supernet is not cut by width,
            or a tier's width has a shift.
    """

    supernet_kind: ClassVar[type] = WidthSupernet

    step: NonNegativeInt = 1
    every: PositiveInt = 1

    @override
    def named(self, text: str) -> Width:
        width = super().named(text)
        if getattr(width, "shift", True):
            raise ConfigError(f"assignment.archs: {text!r} selects its units itself; give 'width: 0.5' or the like")
        return width

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        shift = round.number // self.every * self.step
        return [round.task(client, self._shifted(self.deployed(client), shift)) for client in round.cohort]

    def _shifted(self, width: Width, shift: int) -> Width:
        """Returns a width whose window begins at a unit; the whole network has no window."""
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)


class RandomBases(ByTier):
    """Every client trains as many base networks as its tier can, other ones in every round.

    After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
    Customization", ICLR). The draw is balanced: base networks are shuffled once a round, and each client of the
    cohort takes the next ones.

    Args:
        counts: Per tier how many its clients train; the most that its limits allow by default. Without tiers, all.

    Raises:
        ConfigError: Before training: the supernet has no base networks; the counts do not name the tiers; a count
            is out of range or above the tier's limits.
    """

    supernet_kind: ClassVar[type] = BaseNetworks
    depends_on = "cohort"
    setting: ClassVar[str] = "counts"
    needs_tiers = False

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(None if counts is None else {tier: str(count) for tier, count in counts.items()})

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        order = cycle(round.rng.permutation(self._supernet.count).tolist())
        counts = [len(self.deployed(client).members) for client in round.cohort]
        bases = [Bases(tuple(sorted(islice(order, count)))) for count in counts]
        return [round.task(client, some) for client, some in zip(round.cohort, bases, strict=True)]

    @override
    def named(self, text: str) -> Bases:
        if not 1 <= int(text) <= self._supernet.count:
            raise ConfigError(f"assignment.counts: {text} must be 1 to {self._supernet.count}, the number of bases")
        return self._supernet.space.first(int(text))


@checked("assignment")
class InvariantUnits(ByTier):
    """Stragglers leave out the units that have stopped changing for clients that train the whole network.

    After Wang, Nair and Mahajan (2023, "FLuID: Mitigating Stragglers in Federated Learning using Invariant Dropout"). A
    unit is invariant if, for the majority of the non-stragglers, its relative change over their local training is not
    above its group's threshold. The threshold starts at the least change above zero that any of them saw in the group,
    and is multiplied by ``step`` until there are as many invariant units as the straggler must leave out. If there
    are more, those that change least on average are left out; of equals the last.

    What counts is the last round in which a non-straggler reported (by
    :class:`~lit_fednas.objectives.UnitChanges`); until then stragglers train the first units. Tiers and ratios are
    given, or follow from a trace (:class:`~lit_fednas.tiers.TraceTiers`); the paper measures the times of past rounds.

    Args:
        ratios: Per tier the share of units that its clients train, 1 for non-stragglers; if not given, the
            greatest width that its limits allow.
        step: What the threshold is multiplied with.

    Raises:
        ConfigError: The step is not above 1; before training: as :class:`ByTier`, the supernet is not cut by width,
            the objective does not report changes, or no tier has the ratio 1.
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    needs = (UnitChangesReport,)
    state_names = ("unit_changes",)
    depends_on = "reports"
    setting: ClassVar[str] = "ratios"

    def __init__(self, ratios: Mapping[str, float] | None = None, step: Annotated[float, Range(above=1)] = 1.1) -> None:
        super().__init__(None if ratios is None else {tier: str(ratio) for tier, ratio in ratios.items()})
        self.step = step

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        if supernet.space.largest not in self.of_tier.values():
            ratios = ", ".join(f"{name} {width.ratio:g}" for name, width in self.of_tier.items())
            raise ConfigError(
                f"assignment.ratios: {ratios}; the clients of at least one tier must train the whole network "
                f"(ratio 1), because the changes there decide what stragglers leave out"
            )
        self.unit_changes: list[Mapping[str, Sequence[float]]] = []
        self._masks: dict[float, UnitMask] = {}  # by the ratio, of these changes

    @override
    def deployed(self, client: int) -> WidthArch:
        width: Width = super().deployed(client)
        if width == self._supernet.space.largest or not self.unit_changes:
            return width
        if width.ratio not in self._masks:
            self._masks[width.ratio] = self._mask(width.ratio)
        return self._masks[width.ratio]

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        whole = self._supernet.space.largest
        survivors = [result for result in results if result.ok and result.task.arch == whole]
        reports = [result.report(UnitChangesReport) for result in survivors]
        changes = [report.changes for report in reports if report is not None]
        if changes:
            self.unit_changes, self._masks = changes, {}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._masks = {}

    def _mask(self, ratio: float) -> UnitMask:
        """Returns the units of each group that a straggler trains."""
        sizes = self._supernet.sizes(ratio)
        kept = []
        for group, full in self._supernet.units.items():
            changes = np.array([report[group] for report in self.unit_changes])  # [clients, units]
            out = left_out(changes, full - sizes[group], self.step)
            kept.append(tuple(unit for unit in range(full) if unit not in out))
        return UnitMask(tuple(kept))


def left_out(changes: np.ndarray, count: int, step: float) -> list[int]:
    """Returns the ``count`` units that a group's stragglers leave out; changes are ``[non-stragglers, units]``."""
    if count == 0:
        return []
    # the least threshold that more than half of the clients are not above
    needed = np.sort(changes, axis=0)[len(changes) // 2]
    invariant = np.flatnonzero(needed <= _threshold(changes, float(np.sort(needed)[count - 1]), step))
    mean = changes.mean(axis=0)
    return sorted(sorted(invariant.tolist(), key=lambda unit: (mean[unit], -unit))[:count])


def _threshold(changes: np.ndarray, enough: float, step: float) -> float:
    """Returns the first threshold of at least ``enough``: the least change above zero times 1, step, step², ..."""
    above = changes[changes > 0]
    if enough <= 0 or len(above) == 0:
        return 0.0
    least = float(above.min())
    return max(enough, least * step ** ceil(log(enough / least) / log(step)))
