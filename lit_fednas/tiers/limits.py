"""Device tiers: what a class of devices can afford.

A tier is a set of limits on an architecture's costs. They are given as numbers (:class:`Budgets`), found from the
space as FedorAS does (:class:`CumulatedShares`, App. E.4), or follow from devices (:class:`DeviceTiers`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lit_fednas.costs import DeviceProfile
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.labels import OWN
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers.costs import LIMITED_COSTS, ArchitectureCosts

#: The name that stands for no tier: the whole space.
EVERYTHING = "*"


@dataclass(frozen=True)
class Tier:
    """A class of devices.

    Args:
        name: What its files and rows are called.
        at_most: The greatest value allowed, by cost.
        above: Values that must be exceeded, by cost; for tiers that are ranges.
        unsupported: Operators that its devices cannot run, in supernets of operators.
        labels: The label set that its clients have (``lit_fednas.supernets.labels``).

    Raises:
        ConfigError: A cost is unknown or a limit is not positive.

    Example:
        >>> Tier("phones", {"macs": 2e6}).excess({"macs": 3e6})
        0.5
    """

    name: str
    at_most: Mapping[str, float]
    above: Mapping[str, float] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    labels: str = OWN

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name) and self.name != EVERYTHING:
            raise ConfigError(f"tiers: {self.name!r} cannot name a folder; use letters, digits, - and _")
        for cost, limit in [*self.at_most.items(), *self.above.items()]:
            if cost not in LIMITED_COSTS:
                raise ConfigError(
                    f"tiers.{self.name}: {cost!r} is no cost; choose from {', '.join(LIMITED_COSTS)}"
                )
            if not limit > 0:
                raise ConfigError(f"tiers.{self.name}.{cost}: {limit} must be above 0")

    @property
    def limited(self) -> tuple[str, ...]:
        """The costs that have a limit."""
        return tuple(dict.fromkeys([*self.at_most, *self.above]))

    def excess(self, costs: Mapping[str, float]) -> float:
        """By how much the limits are broken, relative to each and added up; 0 for what fits."""
        over = [max(0.0, costs[name] / limit - 1) for name, limit in self.at_most.items()]
        under = [max(0.0, np.nextafter(1.0, 2.0) - costs[name] / limit) for name, limit in self.above.items()]
        return float(sum(over) + sum(under))


class TierSource(ABC):
    """Where the tiers come from."""

    @abstractmethod
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """Returns the tiers, from the least to the most capable."""


@dataclass(frozen=True)
class Budgets(TierSource):
    """Tiers as numbers.

    Args:
        budgets: Per tier: the greatest value allowed, by cost: ``macs`` of one example, ``parameters``, ``bytes``,
            ``activation_bytes``, ``memory_bytes`` (the last two added), ``latency_ms``.

    Example:
        >>> source = Budgets({"small": {"macs": 1e6}, "large": {"macs": 3e6, "bytes": 4e6}})
    """

    budgets: dict[str, dict[str, float]]

    def __post_init__(self) -> None:
        if not self.budgets or not all(self.budgets.values()):
            raise ConfigError("tiers.budgets: give at least one tier, each with a limit, as small: {macs: 1.0e+6}")

    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """The tiers as they were given."""
        return [Tier(name, limits) for name, limits in self.budgets.items()]


@dataclass(frozen=True)
class ArchitectureTiers(TierSource):
    """Tiers by what they can just run: each affords as much as its architecture costs.

    Args:
        archs: Per tier, from the least to the most capable: ``smallest``, ``largest``, or an architecture as the
            space writes it.
        cost: What is limited.

    Raises:
        ConfigError: There is no tier; or, once the space is known, an architecture is not in it, or a tier's costs
            less than that of the tier before.

    Example:
        >>> source = ArchitectureTiers({"simple": "smallest", "complex": "largest"})
    """

    archs: dict[str, str]
    cost: str = "macs"

    def __post_init__(self) -> None:
        if not self.archs:
            raise ConfigError("tiers.archs: is empty; give at least one tier, as large: largest")

    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """One tier per architecture."""
        tiers: list[Tier] = []
        for name, text in self.archs.items():
            tier = Tier(name, {self.cost: float(costs.cost(space.named(text), self.cost))})
            if tiers and tier.at_most[self.cost] < tiers[-1].at_most[self.cost]:
                raise ConfigError(
                    f"tiers.archs.{name}: {text!r} costs {tier.at_most[self.cost]:g} {self.cost}, less than "
                    f"{tiers[-1].name}'s {tiers[-1].at_most[self.cost]:g}; list tiers from the least capable on"
                )
            tiers.append(tier)
        return tiers


@dataclass(frozen=True)
class CumulatedShares(TierSource):
    """Tiers from the space itself (FedorAS, App. E.4).

    Architectures are sampled and sorted by cost. Their costs, divided by the sum of all, are added up from the
    cheapest on; the highest tier begins where the sum reaches ``high``, and ends at the largest architecture. The
    range below is divided evenly. With ``low`` the first tier likewise ends where the sum reaches ``low`` (the
    paper's rho_L, for Speech Commands and Shakespeare). Tiers are called ``tier1``, ``tier2``, ...

    Args:
        count: Number of tiers.
        high: The paper's rho (rho_H).
        low: The paper's rho_L; if not given, the range below ``high`` starts at the smallest architecture.
        cost: What is shared out.
        samples: Architectures that are sampled.
        ranges: Whether a tier's architectures must be above the tier below; else any cheaper one fits too (Eq. 6).
    """

    count: int = 3
    high: float = 0.95
    low: float | None = None
    cost: str = "macs"
    samples: int = 10_000
    ranges: bool = False

    def __post_init__(self) -> None:
        if self.count < 1 or self.samples < 1:
            raise ConfigError(f"tiers: count {self.count} and samples {self.samples} must be at least 1")
        if not 0 <= (self.low or 0) < self.high <= 1 or (self.low is not None and self.count < 3):
            raise ConfigError(
                f"tiers: low {self.low} and high {self.high} must be shares, low below high, "
                f"and low asks for at least 3 tiers"
            )

    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """Samples the space; one tier if it holds one architecture."""
        sampled = np.array([costs.cost(space.sample(rng), self.cost) for _ in range(self.samples)], dtype=float)
        # the space's own bounds need not be those by this cost
        smallest = min(costs.cost(space.smallest, self.cost), sampled.min())
        largest = max(costs.cost(space.largest, self.cost), sampled.max())
        bounds = self.bounds(sampled, smallest, largest)
        tiers: list[Tier] = []
        floor = 0.0
        for bound in bounds:
            if bound > floor:
                above = {self.cost: floor} if self.ranges and floor else {}
                tiers.append(Tier(f"tier{len(tiers) + 1}", {self.cost: float(bound)}, above))
                floor = float(bound)
        return tiers

    def bounds(self, sampled: np.ndarray, smallest: float, largest: float) -> list[float]:
        """The upper limit of each tier.

        Args:
            sampled: Costs of sampled architectures.
            smallest: Cost of the smallest architecture.
            largest: Cost of the largest architecture.

        Example:
            >>> source = CumulatedShares(count=3, high=0.6)  # shares 0.1, 0.3, 0.6, 1 of the sum
            >>> source.bounds(np.array([4.0, 1.0, 2.0, 3.0]), smallest=1, largest=5)
            [2.0, 3.0, 5.0]
        """
        ascending = np.sort(sampled)
        shares = np.cumsum(ascending) / ascending.sum()

        def reached(share: float) -> float:
            within = int(np.searchsorted(shares, share + 1e-12, side="right"))
            return float(ascending[max(0, within - 1)])

        if self.count == 1:
            return [float(largest)]
        high = reached(self.high)
        if self.low is None:
            lower = np.linspace(smallest, high, self.count)[1:]
        else:
            lower = np.linspace(reached(self.low), high, self.count - 1)
        return [*(float(bound) for bound in lower), float(largest)]


@dataclass(frozen=True)
class DeviceTiers(TierSource):
    """One tier per device, limited by its memory and by how long an example may take.

    Args:
        devices: The devices, from the least to the most capable.
    """

    devices: Sequence[DeviceProfile]

    def __post_init__(self) -> None:
        if not self.devices:
            raise ConfigError("tiers.devices: is empty; give at least one")

    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """The devices' limits."""
        return [Tier(device.name, device.limits()) for device in self.devices]
