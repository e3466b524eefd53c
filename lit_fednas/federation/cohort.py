"""Which clients take part in a round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.rng import numpy_generator


class Availability(ABC):
    """Which clients are there to be asked."""

    @abstractmethod
    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns the clients that can be asked in a round, ascending."""


class AlwaysAvailable(Availability):
    """Every client, in every round.

    Example:
        >>> AlwaysAvailable().available(0, 3, seed=0)
        [0, 1, 2]
    """

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns all."""
        return list(range(num_clients))


class RandomAvailability(Availability):
    """Each client is away with a probability, anew each round.

    Args:
        away: Probability of being away.

    Example:
        >>> len(RandomAvailability(0.5).available(0, 1000, seed=0)) in range(450, 550)
        True
    """

    def __init__(self, away: float) -> None:
        if not 0 <= away < 1:
            raise ConfigError(f"cohort.availability.away: {away} must be at least 0 and below 1")
        self.away = away

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Draws who is there."""
        draws = numpy_generator(seed, "availability", round).random(num_clients)
        return [client for client in range(num_clients) if draws[client] >= self.away]


class DailyAvailability(Availability):
    """Clients come and go by the clock: each is there for a share of every day, at its own time of day.

    Args:
        day: Rounds per day.
        share: Share of the day that a client is there.

    Example:
        >>> daily = DailyAvailability(day=4, share=0.5)
        >>> sum(7 in daily.available(t, 10, seed=0) for t in range(4))
        2
    """

    def __init__(self, day: int, share: float = 0.5) -> None:
        if day < 1 or not 0 < share <= 1:
            raise ConfigError(
                f"cohort.availability: day {day} must be at least 1, and share {share} above 0, at most 1"
            )
        self.day = day
        self.share = share

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns those whose time of day it is."""
        starts = numpy_generator(seed, "time-of-day").integers(self.day, size=num_clients)
        there = max(1, int(self.share * self.day + 0.5))
        return [client for client in range(num_clients) if (round - starts[client]) % self.day < there]


class OnlyClients(Availability):
    """Some clients, as far as another rule has them there.

    Args:
        clients: Those that may be asked.
        availability: The other rule.

    Example:
        >>> OnlyClients([4, 1]).available(0, 3, seed=0)
        [1]
    """

    def __init__(self, clients: Iterable[int], availability: Availability = AlwaysAvailable()) -> None:
        self.clients = frozenset(clients)
        self.availability = availability

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns those of them that are there."""
        return [c for c in self.availability.available(round, num_clients, seed) if c in self.clients]


class CohortSampler(ABC):
    """Draws the clients of a round from those available.

    Args:
        ratio: Participation ratio C: max(C K, 1) of all K clients (SuperFed, Algorithm 1, line 3).
        count: Their number instead.
        availability: Who is there; if fewer are there than asked for, all of them take part.

    Raises:
        ConfigError: Both or neither of ratio and count are given, or they are out of range.
    """

    def __init__(
        self,
        ratio: float | None = None,
        count: int | None = None,
        availability: Availability = AlwaysAvailable(),
    ) -> None:
        if (ratio is None) == (count is None):
            raise ConfigError(f"cohort: ratio is {ratio} and count is {count}; give one of the two")
        if ratio is not None and not 0 < ratio <= 1:
            raise ConfigError(f"cohort.ratio: {ratio} must be above 0 and at most 1")
        if count is not None and count < 1:
            raise ConfigError(f"cohort.count: {count} must be at least 1")
        self.ratio = ratio
        self.count = count
        self.availability = availability

    def size(self, num_clients: int) -> int:
        """Clients per round.

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
            The clients, ascending; none if nobody is there.
        """
        present = self.availability.available(round, len(sizes), seed)
        wanted = min(self.size(len(sizes)), len(present))
        if wanted == 0:
            return []
        chosen = self.choose(present, wanted, sizes, numpy_generator(seed, "cohort", round))
        return sorted(int(client) for client in chosen)

    def among(self, clients: Iterable[int]) -> Self:
        """The same rule for some of the clients; the cohort's size stays that of all clients, if so many are left.

        Args:
            clients: Those that may be asked.
        """
        sampler = copy.copy(self)
        sampler.availability = OnlyClients(clients, self.availability)
        return sampler

    @abstractmethod
    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        """Chooses ``wanted`` distinct clients from those present."""


class UniformCohort(CohortSampler):
    """Every client alike, without replacement.

    Example:
        >>> len(set(UniformCohort(count=3).draw(0, [10] * 5, seed=0)))
        3
    """

    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        """Draws uniformly."""
        return list(rng.choice(np.asarray(present), size=wanted, replace=False))


class SizeWeightedCohort(CohortSampler):
    """Clients with more data are likelier, without replacement.

    Example:
        >>> SizeWeightedCohort(count=1).draw(0, [0, 10, 0], seed=0)
        [1]
    """

    def choose(
        self, present: Sequence[int], wanted: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> Sequence[int]:
        """Draws with probabilities proportional to the training examples."""
        weights = np.asarray([sizes[client] for client in present], dtype=np.float64)
        wanted = min(wanted, int((weights > 0).sum()))
        if wanted == 0:
            return []
        return list(rng.choice(np.asarray(present), size=wanted, replace=False, p=weights / weights.sum()))
