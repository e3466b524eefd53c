"""Cohort sampling: which clients take part in a round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, PositiveShare, ShareBelowOne, checked
from lit_fednas.rng import numpy_generator


class Availability(ABC):
    """Which clients can take part in a round."""

    @abstractmethod
    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns the clients that can take part in a round, ascending.

        Args:
            round: The round, from 0.
            num_clients: The number of all clients.
            seed: The run's seed.
        """


class AlwaysAvailable(Availability):
    """Every client, in every round.

    Example:
        >>> AlwaysAvailable().available(0, 3, seed=0)
        [0, 1, 2]
    """

    @override
    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        return list(range(num_clients))


@checked("cohort.availability")
class RandomAvailability(Availability):
    """Each client is away with the same probability, independently in each round.

    Args:
        away: Probability of being away.

    Example:
        >>> len(RandomAvailability(0.5).available(0, 1000, seed=0)) in range(450, 550)
        True
    """

    def __init__(self, away: ShareBelowOne) -> None:
        self.away = away

    @override
    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        draws = numpy_generator(seed, "availability", round).random(num_clients)
        return [client for client in range(num_clients) if draws[client] >= self.away]


class OnlyClients(Availability):
    """Some of the clients that another rule makes available.

    Args:
        clients: The clients that may take part.
        availability: The other rule.

    Example:
        >>> OnlyClients([4, 1]).available(0, 3, seed=0)
        [1]
    """

    def __init__(self, clients: Iterable[int], availability: Availability = AlwaysAvailable()) -> None:
        self.clients = frozenset(clients)
        self.availability = availability

    @override
    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        return [c for c in self.availability.available(round, num_clients, seed) if c in self.clients]


@checked("cohort")
class CohortSampler(ABC):
    """Draws the clients of a round from those that are available.

    Args:
        ratio: Participation ratio C: max(C K, 1) of all K clients (SuperFed, Algorithm 1, line 3).
        count: The number of clients instead.
        availability: Which clients are available; if there are fewer than asked for, all of them take part.

    Raises:
        ConfigError: Both or neither of ratio and count are given, or they are out of range.
    """

    def __init__(
        self,
        ratio: PositiveShare | None = None,
        count: PositiveInt | None = None,
        availability: Availability = AlwaysAvailable(),
    ) -> None:
        if (ratio is None) == (count is None):
            raise ConfigError(f"cohort: ratio is {ratio} and count is {count}; give one of the two")
        self.ratio = ratio
        self.count = count
        self.availability = availability

    def size(self, num_clients: int) -> int:
        """Returns the number of clients per round.

        Args:
            num_clients: The number of all clients.

        Raises:
            ConfigError: More are asked for than there are.

        Example:
            >>> UniformCohort(ratio=0.4).size(20)
            8
        """
        if self.count is not None:
            if self.count > num_clients:
                raise ConfigError(
                    f"cohort.count: {self.count} is more than the {num_clients} clients; "
                    f"lower it or raise data.num_clients"
                )
            return self.count
        assert self.ratio is not None
        return max(int(self.ratio * num_clients + 1e-9), 1)

    def draw(self, round: int, sizes: Sequence[int], seed: int) -> list[int]:
        """Draws a round's cohort.

        Args:
            round: The round, from 0.
            sizes: Training examples of every client.
            seed: The run's seed.

        Returns:
            The clients, ascending; none if none is available.
        """
        present = self.availability.available(round, len(sizes), seed)
        wanted = min(self.size(len(sizes)), len(present))
        if wanted == 0:
            return []
        chosen = self.choose(present, wanted, sizes, numpy_generator(seed, "cohort", round))
        return sorted(int(client) for client in chosen)

    def among(self, clients: Iterable[int]) -> Self:
        """Returns the same rule for some of the clients; the cohort keeps its size, if so many are left.

        Args:
            clients: The clients that may take part.
        """
        sampler = copy.copy(self)
        sampler.availability = OnlyClients(clients, self.availability)
        return sampler

    @abstractmethod
    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        """Chooses distinct clients.

        Args:
            present: The available clients.
            wanted: How many to choose.
            sizes: Training examples of every client.
            rng: The round's generator.
        """


class UniformCohort(CohortSampler):
    """All clients are equally likely, without replacement.

    Example:
        >>> len(set(UniformCohort(count=3).draw(0, [10] * 5, seed=0)))
        3
    """

    @override
    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        return list(rng.choice(np.asarray(present), size=wanted, replace=False))


class PoissonCohort(CohortSampler):
    """Every available client takes part with the same probability, independently of the others: Poisson sampling.

    Cohorts have no fixed size, and may be empty. Differential privacy counts them as sampled (``privacy``).

    Args:
        ratio: The probability.
        availability: Which clients are available.

    Example:
        >>> sizes = [len(PoissonCohort(0.5).draw(round, [10] * 100, seed=0)) for round in range(3)]
        >>> all(30 < size < 70 for size in sizes), len(set(sizes)) > 1
        (True, True)
    """

    def __init__(self, ratio: PositiveShare, availability: Availability = AlwaysAvailable()) -> None:
        super().__init__(ratio, None, availability)
        self.ratio: float = ratio

    @override
    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        draws = rng.random(len(present))
        return [client for client, draw in zip(present, draws, strict=True) if draw < self.ratio]


class SizeWeightedCohort(CohortSampler):
    """A client's probability is proportional to its training examples, without replacement.

    Example:
        >>> SizeWeightedCohort(count=1).draw(0, [0, 10, 0], seed=0)
        [1]
    """

    @override
    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        weights = np.asarray([sizes[client] for client in present], dtype=np.float64)
        wanted = min(wanted, int((weights > 0).sum()))
        if wanted == 0:
            return []
        return list(rng.choice(np.asarray(present), size=wanted, replace=False, p=weights / weights.sum()))
