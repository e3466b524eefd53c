"""Pools of architectures, from which assignments and searches draw within the limits of tiers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import Count, Filled, checked
from lit_fednas.records.files import read_table
from lit_fednas.rng import numpy_generator
from lit_fednas.tiers import EVERYBODY, ArchitectureCosts, Population, Tier

_OVERSAMPLING = 8  # candidates per architecture of a sampled pool


class Pool(ABC):
    """A selection of architectures from a supernet's space, equal in every run."""

    @abstractmethod
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        """Returns distinct architectures that are spread along ``cost``, one of ``LIMITED_COSTS``."""


@checked("assignment.pool")
@dataclass(frozen=True)
class WholeSpace(Pool):
    """Architectures from the whole space, with costs that rise by a constant factor from the smallest to the largest.

    Candidates are the smallest and the largest architecture with a random share of their genes redrawn, as uniformly
    drawn genes mostly give networks of medium size.

    Args:
        count: Number of architectures.
    """

    count: Count = 256

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, rng = costs.supernet.space, numpy_generator(0, "pool")
        bounds = space.smallest, space.largest
        candidates = (space.mutate(bounds[turn % 2], rng, rng.random()) for turn in range(_OVERSAMPLING * self.count))
        return spread([*bounds, *candidates], costs, cost, self.count)


@checked("assignment.pool")
@dataclass(frozen=True)
class RisingPath(Pool):
    """A path of nested architectures from the smallest to the largest.

    Each step raises the gene that is relatively farthest from its largest value. The pool contains those steps at which
    costs rise by a constant factor. The space must have ordered choices (depths, widths, ratios).

    Args:
        count: Number of architectures; fewer if the path has fewer steps.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, 4, stage_widths=[8], depths=[0, 1], ratios=[0.25, 0.5], divisor=1)
        >>> [str(arch) for arch in RisingPath(3).architectures(ArchitectureCosts(net), "macs")]
        ['d: [0], e: 0.25', 'd: [1], e: 0.25', 'd: [1], e: 0.5']
    """

    count: Count = 8

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space = costs.supernet.space
        genes, last = (list(space.encode(end)) for end in (space.smallest, space.largest))
        lengths = [end - start for start, end in zip(genes, last, strict=True)]
        if min(lengths) < 0:
            raise ConfigError(
                "assignment.pool: RisingPath needs ordered choices, which this supernet does not have; use WholeSpace"
            )
        path = [space.decode(genes)]
        while genes != last:
            distances = [(end - gene) / max(length, 1) for gene, end, length in zip(genes, last, lengths, strict=True)]
            genes[int(np.argmax(distances))] += 1
            path.append(space.decode(genes))
        return spread(path, costs, cost, self.count)


@checked("assignment.pool")
@dataclass(frozen=True)
class Listed(Pool):
    """A list of architectures, for instance from an earlier search's front.

    Args:
        archs: Texts of architectures, ``smallest`` or ``largest``.

    Raises:
        ConfigError: The list is empty, or (before training) the space does not have an architecture.
    """

    archs: Annotated[Sequence[str], Filled]

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        return list(dict.fromkeys(costs.supernet.space.named(text) for text in self.archs))


@dataclass(frozen=True)
class FromFile(Pool):
    """The architectures in a file of a search, such as ``tiers.csv`` or ``front.csv``.

    The front of a ``ProxySearch`` is DeepFedNAS' path of architectures, which exists before training.

    Args:
        path: A CSV file with the texts of architectures in the column ``arch``.

    Raises:
        DataError: The file is missing, damaged or empty (reported before training).
        ConfigError: The space does not have an architecture of the file.
    """

    path: Path

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        try:
            texts = [row["arch"] for row in read_table(self.path, ["arch"])]
        except OSError as error:
            reason = f"{self.path} cannot be read ({error.strerror})"
            raise DataError(f"assignment.pool.path: {reason}; set it to a file of a search") from None
        if not texts:
            raise DataError(f"assignment.pool.path: {self.path} holds no architecture; search again")
        try:
            return list(dict.fromkeys(costs.supernet.space.parse(text) for text in texts))
        except ConfigError as error:
            raise ConfigError(f"assignment.pool.path: {self.path} is of another supernet: {error}") from None


def spread(archs: Iterable[Any], costs: ArchitectureCosts, cost: str, count: int) -> list[Any]:
    """Returns distinct architectures near costs that rise by a constant factor from the lowest to the highest."""
    ascending = sorted(dict.fromkeys(archs), key=lambda arch: costs.cost(arch, cost))
    ascending_costs = np.array([costs.cost(arch, cost) for arch in ascending], dtype=float)
    targets = np.geomspace(ascending_costs[0], ascending_costs[-1], count) if count > 1 else ascending_costs[-1:]
    nearest = [int(np.abs(ascending_costs - value).argmin()) for value in targets]
    return [ascending[index] for index in dict.fromkeys(nearest)]


class PoolOfTiers:
    """A pool within the limits of each tier, with draws that have a probability proportional to ``cost ** -power``.

    Args:
        pool: The pool of architectures.
        costs: The costs of the supernet's architectures; if the supernet grows, the pool is computed again.
        population: The clients and their tiers.
        cost: The kind of cost along which the pool is spread.
        power: The exponent of the inverse cost; 0 makes all architectures equally likely.

    Raises:
        ConfigError: A tier cannot afford any architecture of the pool.
    """

    def __init__(
        self, pool: Pool, costs: ArchitectureCosts, population: Population, cost: str = "macs", power: float = 0.0
    ) -> None:
        self.pool, self.costs, self.population, self.cost, self.power = pool, costs, population, cost, power
        self._made_for: Any = None  # the space; a growing supernet replaces it
        for tier in self.tiers:
            self.of_tier(tier)

    @property
    def tiers(self) -> Sequence[Tier]:
        """The clients' tiers; without tiers, one tier without limits."""
        return self.population.tiers or (EVERYBODY,)

    @property
    def archs(self) -> list[Any]:
        """The architectures of the pool."""
        if self._made_for is not self.costs.supernet.space:
            self._made_for = self.costs.supernet.space
            self._archs = self.pool.architectures(self.costs, self.cost)
            self._chances: dict[tuple[str, float], tuple[list[Any], np.ndarray]] = {}
        return self._archs

    @property
    def smallest(self) -> Any:
        """The architecture with the least cost; among ties the first."""
        return min(self.archs, key=self.cost_of)

    @property
    def largest(self) -> Any:
        """The architecture with the greatest cost; among ties the first."""
        return max(self.archs, key=self.cost_of)

    def cost_of(self, arch: Any) -> float:
        """Returns the cost of an architecture along which the pool is spread."""
        return self.costs.cost(arch, self.cost)

    def of_client(self, client: int, limit: float = inf) -> tuple[list[Any], np.ndarray]:
        """Returns the architectures that a client may train, and their float64 probabilities."""
        return self.of_tier(self.population.tier(client), limit)

    def of_tier(self, tier: Tier, limit: float = inf) -> tuple[list[Any], np.ndarray]:
        """Returns a tier's architectures up to ``limit`` (at least the cheapest), and their float64 probabilities."""
        archs = self.archs
        if (key := (tier.name, limit)) not in self._chances:
            affordable = [arch for arch in archs if self.costs.excess(arch, tier) == 0]
            if not affordable:
                raise ConfigError(
                    f"assignment.pool: no architecture of {type(self.pool).__name__} fits tier {tier.name!r} ({tier}); "
                    f"raise the tier's limits in model.tiers, or use a pool with cheaper ones"
                )
            cheap = [arch for arch in affordable if self.cost_of(arch) <= limit]
            allowed = cheap or [min(affordable, key=self.cost_of)]
            weights = np.array([self.cost_of(arch) for arch in allowed], dtype=float) ** -self.power
            self._chances[key] = allowed, weights / weights.sum()
        return self._chances[key]

    def draw(self, client: int, rng: np.random.Generator, limit: float = inf) -> Any:
        """Draws an architecture that a client may train."""
        archs, chances = self.of_client(client, limit)
        return archs[int(rng.choice(len(archs), p=chances))]

    def chances(self, limit: float) -> dict[Any, float]:
        """Returns the chance of each architecture in a draw by any client."""
        chances: dict[Any, float] = {}
        for tier in self.tiers:
            total = self.population.num_clients
            share = len(self.population.members(tier.name)) / total if self.population.tiers else 1.0
            for arch, chance in zip(*self.of_tier(tier, limit), strict=True):
                chances[arch] = chances.get(arch, 0.0) + share * float(chance)
        return chances


@dataclass(frozen=True)
class PoolLimit:
    """The greatest cost of architectures that are drawn from a pool in a round, as set by a schedule."""

    cost: float
