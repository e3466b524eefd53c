"""Cohort sampling: which clients take part in a round."""

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
    """Which clients can take part in a round: all of them, unless a subclass says otherwise.

    Example:
        >>> Availability().available(0, 3, seed=0)
        [0, 1, 2]
    """

    def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
        """Returns which of some clients can take part in a round; each answer depends on the client alone.

        Args:
            round: The round, from 0.
            clients: int64 [clients]; those that may be asked.
            seed: The run's seed.

        Returns:
            bool [clients].
        """
        return np.ones(len(clients), dtype=bool)

    def available(self, round: int, num_clients: int, seed: int) -> list[int]:
        """Returns all clients that can take part in a round, ascending."""
        return np.flatnonzero(self.present(round, np.arange(num_clients), seed)).tolist()


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
    def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
        draws = numpy_generator(seed, "availability", round).random(int(clients.max(initial=-1)) + 1)
        away: np.ndarray = draws[clients] < self.away
        return ~away


class OnlyClients(Availability):
    """Some of the clients that another rule makes available.

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
        count: The number of clients instead.
        availability: Which clients are available; if there are fewer than asked for, all of them take part.

    Attributes:
        depends_on_sizes: Whether the draw depends on the clients' numbers of examples, which are private to
            differential privacy.

    Raises:
        ConfigError: Both or neither of ratio and count are given, or they are out of range.
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
        """Returns the number of clients per round: the count, or the share of all, at least one."""
        if self.count is not None:
            if self.count > num_clients:
                raise ConfigError(f"cohort.count: {self.count} is more than the {num_clients} clients; lower it")
            return self.count
        assert self.ratio is not None
        return max(int(self.ratio * num_clients + 1e-9), 1)

    def draw(self, round: int, sizes: Sequence[int] | np.ndarray, seed: int) -> list[int]:
        """Returns a round's cohort, ascending, given every client's training examples; empty if none is available."""
        wanted = self.size(len(sizes))
        cohort: list[int] = []
        for asked in self.asked(np.asarray(sizes), wanted, numpy_generator(seed, "cohort", round)):
            cohort += asked[self.availability.present(round, asked, seed)].tolist()
            if len(cohort) >= wanted:
                break
        return sorted(cohort[:wanted])

    def separation(self, num_clients: int) -> int:
        """Returns the least number of rounds from one in which a client takes part to its next."""
        return 1

    def among(self, clients: Iterable[int]) -> Self:
        """Returns the same rule for some of the clients; the cohort keeps its size, if so many are left."""
        sampler = copy.copy(self)
        sampler.availability = OnlyClients(clients, self.availability)
        return sampler

    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the state after a round, which :meth:`draw` reads; ``results`` has one per task."""

    @abstractmethod
    def asked(self, sizes: np.ndarray, wanted: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yields clients in the order in which they are asked, until as many as wanted are available.

        Args:
            sizes: Training examples of every client, int64 [clients].
            wanted: How many are wanted; so many are asked first.
            rng: The round's generator.

        Yields:
            Clients that were not asked before, int64.
        """


class UniformCohort(CohortSampler):
    """All clients are equally likely, without replacement.

    Example:
        >>> len(set(UniformCohort(count=3).draw(0, [10] * 5, seed=0)))
        3
    """

    depends_on_sizes = False

    @override
    def asked(self, sizes: np.ndarray, wanted: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield (known := rng.choice(len(sizes), size=wanted, replace=False))
        while len(known) < len(sizes):  # a uniform draw without those that are known is one of the others
            drawn = rng.choice(len(sizes), size=min(4 * len(known), len(sizes)), replace=False)
            yield (new := drawn[np.isin(drawn, known, invert=True)])
            known = np.concatenate([known, new])


class CyclicCohort(CohortSampler):
    """Clients take turns, in an order that is drawn once for the run: each round asks the next ones in it.

    Where m of the K clients are asked per round, a client that is asked is asked again K // m rounds later at the
    earliest (it pauses K // m - 1 rounds), and one round after that at the latest. Those that are not available, or not
    ``among`` the clients left, miss their turn and are not replaced, so that a cohort may be smaller, or empty.
    Differential privacy can correlate the noise of so many rounds (``privacy.bands``).

    Args:
        ratio: Participation ratio: m is max(ratio K, 1).
        count: The number m of clients instead.
        availability: Which clients are available.

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
        (order,) = self.asked(np.asarray(sizes), len(sizes), numpy_generator(seed, "cohort"))
        asked = order.take(turn, mode="wrap")
        return sorted(asked[self.availability.present(round, asked, seed)].tolist())

    @override
    def asked(self, sizes: np.ndarray, wanted: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield rng.permutation(len(sizes))


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

    depends_on_sizes = False

    def __init__(self, ratio: PositiveShare, availability: Availability = Availability()) -> None:
        super().__init__(ratio, None, availability)
        self.ratio: float = ratio

    @override
    def draw(self, round: int, sizes: Sequence[int] | np.ndarray, seed: int) -> list[int]:
        waves = self.asked(np.asarray(sizes), len(sizes), numpy_generator(seed, "cohort", round))
        asked = np.concatenate([np.empty(0, dtype=np.int64), *waves])
        return asked[self.availability.present(round, asked, seed)].tolist()

    @override
    def asked(self, sizes: np.ndarray, wanted: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        last, usual = -1, 1 + math.ceil(len(sizes) * self.ratio)
        while last < len(sizes):  # from one that takes part to the next are geometrically many
            gaps = np.minimum(rng.geometric(self.ratio, usual), len(sizes) + 1)
            places = last + gaps.cumsum()
            yield places[places < len(sizes)]
            last = places[-1]
