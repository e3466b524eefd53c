"""Pools of architectures, which assignments and searches draw from within the limits of tiers."""

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

_CANDIDATES = 8  # drawn for each architecture of a sampled pool


class Pool(ABC):
    """A choice of architectures from a supernet's space; the same in every run."""

    @abstractmethod
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        """Returns the architectures, each once; ``cost`` is the one of ``LIMITED_COSTS`` that they are spread along."""


@checked("assignment.pool")
@dataclass(frozen=True)
class WholeSpace(Pool):
    """Architectures from the whole space whose costs rise by one factor, from the smallest's to the largest's.

    Candidates are the smallest and the largest architecture with a random share of their genes redrawn, as uniformly
    drawn genes mostly give networks of medium size.

    Args:
        count: How many.
    """

    count: Count = 256

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, rng = costs.supernet.space, numpy_generator(0, "pool")
        ends = space.smallest, space.largest
        drawn = (space.mutate(ends[turn % 2], rng, rng.random()) for turn in range(_CANDIDATES * self.count))
        return spread([*ends, *drawn], costs, cost, self.count)


@checked("assignment.pool")
@dataclass(frozen=True)
class RisingPath(Pool):
    """A path from the smallest to the largest architecture, each of which contains those before it.

    A step raises the gene that has come the smallest part of its way. Of all steps those are taken whose costs rise by
    one factor. For spaces whose choices are ordered (depths, widths, ratios).

    Args:
        count: How many architectures; fewer if the path has fewer steps.

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
                "assignment.pool: RisingPath raises every choice from the smallest architecture's to the largest's, "
                "which in this supernet are not in order; use WholeSpace, or Listed"
            )
        path = [space.decode(genes)]
        while genes != last:
            left = [(end - gene) / max(length, 1) for gene, end, length in zip(genes, last, lengths, strict=True)]
            genes[int(np.argmax(left))] += 1
            path.append(space.decode(genes))
        return spread(path, costs, cost, self.count)


@checked("assignment.pool")
@dataclass(frozen=True)
class Listed(Pool):
    """Given architectures, for instance those of an earlier search's front.

    Args:
        archs: Each as the space writes it, or ``smallest`` or ``largest``.

    Raises:
        ConfigError: There is none, or (before training) the space does not have one.
    """

    archs: Annotated[Sequence[str], Filled]

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        return list(dict.fromkeys(costs.supernet.space.named(text) for text in self.archs))


@dataclass(frozen=True)
class FromFile(Pool):
    """The architectures of a file that a search has written, such as its ``tiers.csv`` or ``front.csv``.

    With ``lit-fednas search`` and ``ProxySearch`` this is DeepFedNAS' path of architectures, found before training.

    Args:
        path: A CSV file with a column ``arch``, written as the space writes it.

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
            raise DataError(f"assignment.pool.path: {reason}; give a file that a search has written") from None
        if not texts:
            raise DataError(f"assignment.pool.path: {self.path} holds no architecture; search again")
        try:
            return list(dict.fromkeys(costs.supernet.space.parse(text) for text in texts))
        except ConfigError as error:
            raise ConfigError(f"assignment.pool.path: {self.path} is of another supernet: {error}") from None


def spread(archs: Iterable[Any], costs: ArchitectureCosts, cost: str, count: int) -> list[Any]:
    """Returns the architectures nearest to costs that rise by one factor from the lowest to the highest, each once."""
    ascending = sorted(dict.fromkeys(archs), key=lambda arch: costs.cost(arch, cost))
    values = np.array([costs.cost(arch, cost) for arch in ascending], dtype=float)
    wanted = np.geomspace(values[0], values[-1], count) if count > 1 else values[-1:]
    nearest = [int(np.abs(values - value).argmin()) for value in wanted]
    return [ascending[index] for index in dict.fromkeys(nearest)]


class PoolOfTiers:
    """What clients draw from a pool, within the limits of their tiers, with a probability of ``cost ** -power``.

    Args:
        pool: The architectures.
        costs: Of the supernet's architectures; if it grows, the pool is made again.
        population: The clients.
        cost: What the pool is spread along.
        power: How much more often cheaper ones are drawn.

    Raises:
        ConfigError: No architecture of the pool fits a tier.
    """

    def __init__(
        self, pool: Pool, costs: ArchitectureCosts, population: Population, cost: str = "macs", power: float = 0.0
    ) -> None:
        self.pool, self.costs, self.population, self.cost, self.power = pool, costs, population, cost, power
        self._made_for: Any = None  # the space; a supernet that grows gets another
        for tier in self.tiers:
            self.of_tier(tier)

    @property
    def tiers(self) -> Sequence[Tier]:
        """The clients' tiers, or one without limits."""
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
        """The architecture of least cost; of several the first."""
        return min(self.archs, key=self.cost_of)

    @property
    def largest(self) -> Any:
        """The architecture of greatest cost; of several the first."""
        return max(self.archs, key=self.cost_of)

    def cost_of(self, arch: Any) -> float:
        """Returns the cost of an architecture along which the pool is spread."""
        return self.costs.cost(arch, self.cost)

    def of_client(self, client: int, limit: float = inf) -> tuple[list[Any], np.ndarray]:
        """Returns the architectures that a client may train, and the probability of each, float64 ``[archs]``."""
        return self.of_tier(self.population.tier(client), limit)

    def of_tier(self, tier: Tier, limit: float = inf) -> tuple[list[Any], np.ndarray]:
        """Returns the architectures that fit a tier, and the probability of each, float64 ``[archs]``.

        Those that cost more than ``limit`` are left out, unless all that fit do: then the cheapest stays.

        Raises:
            ConfigError: None fits.
        """
        archs = self.archs
        if (key := (tier.name, limit)) not in self._chances:
            fitting = [arch for arch in archs if self.costs.excess(arch, tier) == 0]
            if not fitting:
                raise ConfigError(
                    f"assignment.pool: no architecture of {type(self.pool).__name__} fits tier {tier.name!r} ({tier}); "
                    f"raise the tier's limits in model.tiers, or give cheaper ones"
                )
            cheap = [arch for arch in fitting if self.cost_of(arch) <= limit]
            chosen = cheap or [min(fitting, key=self.cost_of)]
            weights = np.array([self.cost_of(arch) for arch in chosen], dtype=float) ** -self.power
            self._chances[key] = chosen, weights / weights.sum()
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
    """The greatest cost of an architecture that is drawn from a pool in a round, where a schedule gives it."""

    cost: float
