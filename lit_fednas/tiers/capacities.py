"""Tiers that are spread evenly between the least and the most capable device (FedTrans, section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers.costs import LIMITED_COSTS, ArchitectureCosts
from lit_fednas.tiers.limits import Tier, TierSource

#: Latency is no cost here: a class of devices has none before a device is named.
_COSTS = tuple(cost for cost in LIMITED_COSTS if cost != "latency_ms")


@dataclass(frozen=True)
class Capacities(TierSource):
    """Levels of capability: the least capable device can just run the smallest architecture.

    "The initial model's complexity corresponds to the client with the lowest computation and communication
    capacities", and "the disparity between the most capable and least capable devices exceeds 29x" (FedTrans,
    section 5.1). So the first level affords exactly what the smallest architecture costs, and the last one
    ``ratio`` times as much. The paper draws every client's capacity from a trace of phones; here the levels
    between lie apart by equal factors, as such traces spread over orders of magnitude rather than evenly. Levels
    are called ``level1``, ``level2``, ... Which clients belong to which is the allocation's business: equal
    shares, or by a trace.

    Where a supernet grows while it is trained, the smallest architecture is its first model, from which all others
    were derived by growing. So a level affords the same at any time.

    Args:
        ratio: What the most capable devices afford, relative to the least capable.
        levels: Their number.
        cost: What is limited.
        smallest: What the least capable devices can just run: ``smallest``, or an architecture as the space writes
            it.
        weakest: What the least capable devices afford, as a number, in place of an architecture's cost; so that
            methods with other networks have the same devices.

    Raises:
        ConfigError: A number is out of range, or the cost is unknown; or, once the space is known, the
            architecture is not in it.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[8], depths=[0, 1], ratios=[0.5, 1])
        >>> source, rng = Capacities(ratio=4, levels=3), np.random.default_rng(0)
        >>> levels = source.tiers(net.space, ArchitectureCosts(net), rng)
        >>> net.macs(net.space.smallest), {level.name: level.at_most["macs"] for level in levels}
        (59680, {'level1': 59680.0, 'level2': 119360.0, 'level3': 238720.0})
    """

    ratio: float = 29
    levels: int = 8
    cost: str = "macs"
    smallest: str = "smallest"
    weakest: float | None = None

    def __post_init__(self) -> None:
        if not 1 < self.ratio < float("inf") or self.levels < 2:
            raise ConfigError(
                f"tiers: ratio {self.ratio} must be above 1, and levels {self.levels} at least 2; "
                f"for one class of devices give Budgets"
            )
        if self.weakest is not None and not self.weakest > 0:
            raise ConfigError(
                f"tiers.weakest: {self.weakest} must be above 0, or null for the smallest architecture"
            )
        if self.cost not in _COSTS:
            raise ConfigError(f"tiers.cost: {self.cost!r} cannot be limited; choose from {', '.join(_COSTS)}")

    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """The levels, from the least capable on."""
        least = self.weakest
        if least is None:
            least = float(costs.cost(space.named(self.smallest), self.cost))
        factors = [self.ratio ** (level / (self.levels - 1)) for level in range(self.levels)]
        return [Tier(f"level{place}", {self.cost: least * factor}) for place, factor in enumerate(factors, 1)]
