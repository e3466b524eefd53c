"""What the tiers of a run afford: as numbers, by architectures, from the space itself, or as a ratio of devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, PositiveShare, Range, UnitInterval, checked
from lit_fednas.records.run import suite_of
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers.limits import ArchitectureCosts, CountedCost, Tier


class TierSource(ABC):
    """What the tiers of a run can afford."""

    @abstractmethod
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """Returns the tiers, from the least to the most capable.

        Args:
            space: The architectures.
            costs: Their costs.
            rng: For architectures that are sampled.
        """


@dataclass(frozen=True)
class Budgets(TierSource):
    """Tiers as numbers.

    Args:
        budgets: Per tier: the greatest value allowed, by cost: ``macs`` of one example, ``parameters``, ``bytes``,
            ``activation_bytes``, ``memory_bytes`` (the last two added), ``latency_ms``.

    Raises:
        ConfigError: No tier is given, or one has no limit.

    Example:
        >>> source = Budgets({"small": {"macs": 1e6}, "large": {"macs": 3e6, "bytes": 4e6}})
    """

    budgets: dict[str, dict[str, float]]

    def __post_init__(self) -> None:
        if not self.budgets or not all(self.budgets.values()):
            raise ConfigError("tiers.budgets: give at least one tier, each with a limit, as small: {macs: 1.0e+6}")

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        return [Tier(name, limits) for name, limits in self.budgets.items()]


@dataclass(frozen=True)
class ArchitectureTiers(TierSource):
    """Tiers by what they can just run: each affords as much as its architecture costs.

    Args:
        archs: Per tier, least capable first: ``smallest``, ``largest``, or an architecture as the space writes it.
        cost: What is limited.

    Raises:
        ConfigError: No tier is given; or, once the space is known, an architecture is not in it, or a tier's costs
            less than that of the tier before.

    Example:
        >>> source = ArchitectureTiers({"simple": "smallest", "complex": "largest"})
    """

    archs: dict[str, str]
    cost: str = "macs"

    def __post_init__(self) -> None:
        if not self.archs:
            raise ConfigError("tiers.archs: is empty; give at least one tier, as large: largest")

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
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


@checked("tiers")
@dataclass(frozen=True)
class CumulativeCostTiers(TierSource):
    """Tiers from the space itself, called ``tier1``, ``tier2``, ... (FedorAS, App. E.4).

    Architectures are sampled and sorted by cost. Their shares of the total cost are added up from the cheapest on;
    the highest tier begins where the sum reaches ``high``, and ends at the largest architecture. The range below
    is divided evenly. With ``low`` the first tier likewise ends where the sum reaches ``low`` (the paper's rho_L,
    for Speech Commands and Shakespeare).

    Args:
        count: Number of tiers.
        high: The paper's rho (rho_H).
        low: The paper's rho_L; if not given, the range below ``high`` starts at the smallest architecture.
        cost: What is shared out.
        samples: Architectures that are sampled.
        ranges: Whether a tier's architectures must be above the tier below; else any cheaper one fits too (Eq. 6).

    Raises:
        ConfigError: A number is out of range, or ``low`` is not below ``high`` or given for fewer than 3 tiers.
    """

    count: PositiveInt = 3
    high: PositiveShare = 0.95
    low: UnitInterval | None = None
    cost: str = "macs"
    samples: PositiveInt = 10_000
    ranges: bool = False

    def __post_init__(self) -> None:
        if self.low is not None and (self.low >= self.high or self.count < 3):
            raise ConfigError(
                f"tiers.low: {self.low} must be below high, {self.high}, and needs a count of at least 3, not "
                f"{self.count}; set it to null for none"
            )

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        sampled = np.array([costs.cost(space.sample(rng), self.cost) for _ in range(self.samples)], dtype=float)
        # the space's own bounds need not be those by this cost
        smallest = min(costs.cost(space.smallest, self.cost), sampled.min())
        largest = max(costs.cost(space.largest, self.cost), sampled.max())
        tiers: list[Tier] = []
        floor = 0.0
        for bound in self.bounds(sampled, smallest, largest):
            if bound > floor:
                above = {self.cost: floor} if self.ranges and floor else {}
                tiers.append(Tier(f"tier{len(tiers) + 1}", {self.cost: bound}, above))
                floor = bound
        return tiers

    def bounds(self, sampled: np.ndarray, smallest: float, largest: float) -> list[float]:
        """Returns the upper limit of each tier, ascending.

        Args:
            sampled: Costs of sampled architectures, ``[samples]``.
            smallest: Cost of the smallest architecture.
            largest: Cost of the largest architecture.

        Example:
            >>> source = CumulativeCostTiers(count=3, high=0.6)  # shares 0.1, 0.3, 0.6, 1 of the sum
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
        return [*lower.tolist(), float(largest)]


@checked("tiers")
@dataclass(frozen=True)
class Capacities(TierSource):
    """Levels of capability: the least capable device can just run the smallest architecture.

    FedTrans, section 5.1: "The initial model's complexity corresponds to the client with the lowest computation
    and communication capacities", and "the disparity between the most capable and least capable devices exceeds
    29x". The paper draws every client's capacity from a trace of phones; here levels, called ``level1``,
    ``level2``, ..., are apart by equal factors, as such traces spread over orders of magnitude rather than evenly.

    Where a supernet grows while it is trained, the smallest architecture is its first model, so a level affords the
    same at any time.

    Args:
        ratio: What the most capable devices afford, relative to the least capable.
        levels: Their number.
        cost: What is limited; not latency, which needs a named device.

    Raises:
        ConfigError: A number is out of range, or the cost is unknown.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[8], depths=[0, 1], ratios=[0.5, 1])
        >>> source, rng = Capacities(ratio=4, levels=3), np.random.default_rng(0)
        >>> {level.name: level.at_most["macs"] for level in source.tiers(net.space, ArchitectureCosts(net), rng)}
        {'level1': 59680.0, 'level2': 119360.0, 'level3': 238720.0}
    """

    ratio: Annotated[float, Range(above=1)] = 29
    levels: Annotated[int, Range(at_least=2)] = 8
    cost: CountedCost = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        least = float(costs.cost(space.smallest, self.cost))
        factors = [self.ratio ** (level / (self.levels - 1)) for level in range(self.levels)]
        return [Tier(f"level{level}", {self.cost: least * factor}) for level, factor in enumerate(factors, 1)]


@dataclass(frozen=True)
class TiersOfRun(TierSource):
    """The tiers of a run that has grown its models, so that methods with other networks have the same devices.

    Which client belongs to which is drawn as in that run with its ``seed_everything``, clients and ``allocation``.

    Args:
        run: The run's folder, which holds ``suite.json``.

    Raises:
        ConfigError: The run has grown no models, or did not write its tiers; raised when training begins.
    """

    run: str

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        rows = suite_of(self.run, "model.tiers.source.run").get("tiers")
        if not rows:
            raise ConfigError(f"model.tiers.source.run: {self.run} has no tiers in its suite.json; name another run")
        return [Tier(**{**row, "unsupported": tuple(row["unsupported"])}) for row in rows]
