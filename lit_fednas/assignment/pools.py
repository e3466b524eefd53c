"""Pools: the architectures that an assignment draws from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.rng import numpy_generator
from lit_fednas.tiers import ArchitectureCosts

_CANDIDATES = 8  # drawn for each architecture of a sampled pool


class Pool(ABC):
    """A choice of architectures from a supernet's space; the same in every run."""

    @abstractmethod
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        """Returns the architectures, each once.

        Args:
            costs: Counts what architectures of the supernet cost.
            cost: The cost along which a pool is spread, one of ``lit_fednas.tiers.LIMITED_COSTS``.
        """


@checked("assignment.pool")
@dataclass(frozen=True)
class WholeSpace(Pool):
    """Architectures from the whole space whose costs rise by one factor, from the smallest's to the largest's.

    Uniformly drawn genes mostly give networks of medium size. So candidates are the smallest and the largest
    architecture with a random share of their genes redrawn.

    Args:
        count: How many.
    """

    count: PositiveInt = 256

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, rng = costs.supernet.space, numpy_generator(0, "pool")
        ends = space.smallest, space.largest
        drawn = (space.mutate(ends[turn % 2], rng, rng.random()) for turn in range(_CANDIDATES * self.count))
        return _spread([*ends, *drawn], costs, cost, self.count)


@checked("assignment.pool")
@dataclass(frozen=True)
class RisingPath(Pool):
    """A path from the smallest to the largest architecture, each of which contains those before it.

    A step raises one gene by one choice: the one that has come the smallest part of its way. Of all steps those are
    taken whose costs rise by one factor, so that small devices have as many as large ones. For spaces whose choices are
    ordered (depths, widths, ratios).

    Args:
        count: How many architectures; fewer if the path has fewer steps.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, 4, stage_widths=[8], depths=[0, 1], ratios=[0.25, 0.5], divisor=1)
        >>> [str(arch) for arch in RisingPath(3).architectures(ArchitectureCosts(net), "macs")]
        ['d: [0], e: 0.25', 'd: [1], e: 0.25', 'd: [1], e: 0.5']
    """

    count: PositiveInt = 8

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space = costs.supernet.space
        genes, last = (list(space.encode(end)) for end in (space.smallest, space.largest))
        lengths = [end - start for start, end in zip(genes, last, strict=True)]
        if min(lengths) < 0:
            raise ConfigError(
                "assignment.pool: RisingPath raises every choice from the smallest architecture's to the largest's, "
                "which in this supernet are not in order; use WholeSpace, or Listed"
            )
        path = [space.decode(genes)]
        while genes != last:
            left = [(end - gene) / max(length, 1) for gene, end, length in zip(genes, last, lengths, strict=True)]
            genes[int(np.argmax(left))] += 1
            path.append(space.decode(genes))
        return _spread(path, costs, cost, self.count)


@dataclass(frozen=True)
class Listed(Pool):
    """Given architectures, for instance those of an earlier search's front.

    Args:
        archs: Each as the space writes it, or ``smallest`` or ``largest``.

    Raises:
        ConfigError: There is none, or (before training) the space does not have one.
    """

    archs: Sequence[str]

    def __post_init__(self) -> None:
        if not self.archs:
            raise ConfigError("assignment.pool.archs: is empty; give at least one, for instance [smallest, largest]")

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        return list(dict.fromkeys(costs.supernet.space.named(text) for text in self.archs))


def _spread(archs: Iterable[Any], costs: ArchitectureCosts, cost: str, count: int) -> list[Any]:
    """Returns the architectures nearest to costs that rise by one factor from the lowest to the highest, each once."""
    ascending = sorted(dict.fromkeys(archs), key=lambda arch: costs.cost(arch, cost))
    values = np.array([costs.cost(arch, cost) for arch in ascending], dtype=float)
    wanted = np.geomspace(values[0], values[-1], count) if count > 1 else values[-1:]
    nearest = [int(np.abs(values - value).argmin()) for value in wanted]
    return [ascending[index] for index in dict.fromkeys(nearest)]
