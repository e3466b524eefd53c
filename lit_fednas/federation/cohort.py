"""Cohort samplers: they draw the clients that take part in a round."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult
from lit_fednas.parts import Part
from lit_fednas.ranges import PositiveInt, PositiveShare, ShareBelowOne, checked
from lit_fednas.rng import numpy_generator


class Availability:
    """Rule for the clients that can take part in a round; this class allows all of them.

    Example:
        >>> Availability().available(0, 3, seed=0)
        [0, 1, 2]
    """

    def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
        """Returns a mask [clients] of clients that can take part in a round; each depends on its client alone."""
        return np.ones(len(clients), dtype=bool)

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns all clients that can take part in a round, ascending."""
        return np.flatnonzero(self.present(round, np.arange(num_clients), seed)).tolist()


@checked("cohort.availability")
class RandomAvailability(Availability):
    """Makes each client unavailable with the same probability, independently in each round.

    Args:
        away: Probability that a client is unavailable.

    Example:
        >>> len(RandomAvailability(0.5).available(0, 1000, seed=0)) in range(450, 550)
        True
    """

    def __init__(self, away: ShareBelowOne) -> None:
        self.away = away

    @override
    def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
        draws = numpy_generator(seed, "availability", round).random(int(clients.max(initial=-1)) + 1)
        is_away: np.ndarray = draws[clients] < self.away
        return ~is_away


class OnlyClients(Availability):
    """Restricts another rule to some of the clients.

    Args:
        clients: The clients that may take part.
        availability: The other rule.

    Example:
        >>> OnlyClients([4, 1]).available(0, 3, seed=0)
        [1]
    """

    def __init__(self, clients: Iterable[int], availability: Availability = Availability()) -> None:
        self.clients = np.unique(np.fromiter(clients, dtype=np.int64))
        self.availability = availability

    @override
    def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
        return np.isin(clients, self.clients) & self.availability.present(round, clients, seed)


@checked("cohort")
class CohortSampler(Part, ABC):
    """Draws the clients of a round from those that are available.

    Args:
        ratio: Participation ratio C: max(C K, 1) of all K clients (SuperFed, Algorithm 1, line 3).
        count: Number of clients per round, in place of ``ratio``.
        availability: Rule for the available clients; if fewer than the cohort's size are available, all take part.

    Attributes:
        depends_on_sizes: Whether the draw depends on the clients' numbers of examples. Differential privacy treats
            these numbers as private.
    """

    field: ClassVar[str] = "model.cohort"
    depends_on_sizes: ClassVar[bool] = True

    def __init__(
        self,
        ratio: PositiveShare | None = None,
        count: PositiveInt | None = None,
        availability: Availability = Availability(),
    ) -> None:
        if (ratio is None) == (count is None):
            raise ConfigError(f"cohort: ratio is {ratio} and count is {count}; give one of the two")
        self.ratio = ratio
        self.count = count
        self.availability = availability

    def size(self, num_clients: int) -> int:
        """Returns the number of clients per round, at least one."""
        if self.count is not None:
            if self.count > num_clients:
                raise ConfigError(f"cohort.count: {self.count} is more than the {num_clients} clients; lower it")
            return self.count
        assert self.ratio is not None
        return max(int(self.ratio * num_clients + 1e-9), 1)

    def draw(self, round: int, sizes: Sequence[int] | np.ndarray, seed: int) -> list[int]:
        """Returns a round's cohort, ascending, from every client's number of examples; empty if none is available."""
        cohort_size = self.size(len(sizes))
        cohort: list[int] = []
        for wave in self.waves(np.asarray(sizes), cohort_size, numpy_generator(seed, "cohort", round)):
            cohort += wave[self.availability.present(round, wave, seed)].tolist()
            if len(cohort) >= cohort_size:
                break
        return sorted(cohort[:cohort_size])

    def separation(self, num_clients: int) -> int:
        """Returns the minimum distance, in rounds, between two cohorts with the same client."""
        return 1

    def among(self, clients: Iterable[int]) -> Self:
        """Returns the same rule restricted to some clients; the cohort keeps its size if enough clients are left."""
        sampler = copy.copy(self)
        sampler.availability = OnlyClients(clients, self.availability)
        return sampler

    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the state that :meth:`draw` reads, from one result per task of a round."""

    @abstractmethod
    def waves(self, sizes: np.ndarray, cohort_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yields clients to invite, wave by wave, until enough are available.

        Args:
            sizes: Number of training examples of every client, int64 [clients].
            cohort_size: Number of clients that are needed, and the size of the first wave.
            rng: The round's generator.

        Yields:
            Clients that no earlier wave contained, int64.
        """


class UniformCohort(CohortSampler):
    """Draws clients uniformly, without replacement.

    Example:
        >>> len(set(UniformCohort(count=3).draw(0, [10] * 5, seed=0)))
        3
    """

    depends_on_sizes = False

    @override
    def waves(self, sizes: np.ndarray, cohort_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield (invited := rng.choice(len(sizes), size=cohort_size, replace=False))
        while len(invited) < len(sizes):
            # a uniform draw from all clients, without the invited ones, is a uniform draw from the others
            sample = rng.choice(len(sizes), size=min(4 * len(invited), len(sizes)), replace=False)
            yield (wave := sample[np.isin(sample, invited, invert=True)])
            invited = np.concatenate([invited, wave])


class CyclicCohort(CohortSampler):
    """Invites clients in turn: each round takes the next m of the K clients, in an order drawn once for the run.

    From one turn of a client to its next there are at least K // m rounds (one more at most), in which differential
    privacy can correlate its noise (``privacy.bands``). A client that is not available, or not ``among`` the remaining
    clients, misses its turn and is not replaced, so that a cohort may be smaller, or empty.

    Example:
        >>> cohorts = [CyclicCohort(count=2).draw(round, [10] * 6, seed=0) for round in range(6)]
        >>> sorted(sum(cohorts[:3], [])), cohorts[:3] == cohorts[3:]
        ([0, 1, 2, 3, 4, 5], True)
    """

    depends_on_sizes = False

    @override
    def separation(self, num_clients: int) -> int:
        return num_clients // self.size(num_clients)

    @override
    def draw(self, round: int, sizes: Sequence[int] | np.ndarray, seed: int) -> list[int]:
        turn = round * self.size(len(sizes)) + np.arange(self.size(len(sizes)))
        (order,) = self.waves(np.asarray(sizes), len(sizes), numpy_generator(seed, "cohort"))
        invited = order.take(turn, mode="wrap")
        return sorted(invited[self.availability.present(round, invited, seed)].tolist())

    @override
    def waves(self, sizes: np.ndarray, cohort_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield rng.permutation(len(sizes))


class PoissonCohort(CohortSampler):
    """Draws every available client with the same probability, independently of the others (Poisson sampling).

    Cohorts vary in size, and may be empty. Differential privacy gains from this sampling (``privacy``).

    Args:
        ratio: The probability that an available client takes part.
        availability: Rule for the available clients.

    Example:
        >>> sizes = [len(PoissonCohort(0.5).draw(round, [10] * 100, seed=0)) for round in range(3)]
        >>> all(30 < size < 70 for size in sizes), len(set(sizes)) > 1
        (True, True)
    """

    depends_on_sizes = False

    def __init__(self, ratio: PositiveShare, availability: Availability = Availability()) -> None:
        super().__init__(ratio, None, availability)
        self.ratio: float = ratio

    @override
    def draw(self, round: int, sizes: Sequence[int] | np.ndarray, seed: int) -> list[int]:
        waves = self.waves(np.asarray(sizes), len(sizes), numpy_generator(seed, "cohort", round))
        invited = np.concatenate([np.empty(0, dtype=np.int64), *waves])
        return invited[self.availability.present(round, invited, seed)].tolist()

    @override
    def waves(self, sizes: np.ndarray, cohort_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        last, expected_size = -1, 1 + math.ceil(len(sizes) * self.ratio)
        while last < len(sizes):
            # the gaps between clients that take part have a geometric distribution
            gaps = np.minimum(rng.geometric(self.ratio, expected_size), len(sizes) + 1)
            clients = last + gaps.cumsum()
            yield clients[clients < len(sizes)]
            last = clients[-1]
