"""Random architectures (SuperFed's baseline, section 3.1), and sandwiches (section 2.4; Table 2).

Choices where the paper is silent: A cohort of one client trains the largest architecture, which the aggregation needs
(section 2.3). Ties are broken at random. The client of the largest architecture is chosen before that of the smallest.
A random draw of a bound counts as training it. A bound of a pool goes to a client with a tier that affords it, if any.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.pools import Pool, PoolOfTiers
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population


class RandomArchitectures(Assignment):
    """Every client trains a random architecture from the space, with a new draw in each round ("R" of Table 2)."""

    depends_on = "client"

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, round.space.sample(round.rng)) for client in round.cohort]


class Sandwich(Assignment):
    """Two random clients train the largest and the smallest architecture, the others random architectures.

    Args:
        pool: The pool to draw from with equal chances, as in DeepFedNAS; by default the whole space. With
            a pool, the bounds are its architectures with the most and the fewest MACs, and tiers limit the draws.

    Raises:
        ConfigError: A tier cannot afford any architecture of the pool (reported before training).
    """

    depends_on = "cohort"

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool = pool
        self.pools: PoolOfTiers | None = None

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self.pools = None if self.pool is None else PoolOfTiers(self.pool, self._costs, population)

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        if not round.cohort:
            return []
        largest, smallest = self.bounds(round.cohort, round.rng)
        source = self.pools or round.space
        archs = {largest: source.largest, smallest: source.smallest}
        return [
            round.task(client, archs[position] if position in archs else self._drawn(client, round))
            for position, client in enumerate(round.cohort)
        ]

    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        """Returns the cohort positions that train the largest and the smallest architecture; -1 if no client can."""
        positions = rng.permutation(len(cohort))
        return self._first_able(cohort, positions, positions)

    def _first_able(self, cohort: Sequence[int], by_largest: np.ndarray, by_smallest: np.ndarray) -> tuple[int, int]:
        """Returns the first position in each order with a client that affords the bound, starting with the largest."""

        def first(order: np.ndarray, bound: str, excluded: int = -1) -> int:
            candidates = (int(index) for index in order if index != excluded and self._affords(cohort[index], bound))
            return next(candidates, -1)

        largest = first(by_largest, "largest")
        return largest, first(by_smallest, "smallest", largest)

    def _affords(self, client: int, bound: str) -> bool:
        return self.pools is None or getattr(self.pools, bound) in self.pools.of_client(client)[0]

    def _drawn(self, client: int, round: Round) -> Any:
        return round.space.sample(round.rng) if self.pools is None else self.pools.draw(client, round.rng)


class TrackingSandwich(Sandwich):
    """A sandwich that gives the bounds to the clients that trained them least often, so that both see all data."""

    state_names = ("largest_seen", "smallest_seen")

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self.largest_seen: dict[int, int] = {}  # number of rounds by client
        self.smallest_seen: dict[int, int] = {}

    @override
    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        rounds_trained = self.largest_seen, self.smallest_seen
        counts = (np.array([rounds_of.get(client, 0) for client in cohort]) for rounds_of in rounds_trained)
        by_largest, by_smallest = (np.lexsort((rng.random(len(cohort)), count)) for count in counts)
        return self._first_able(cohort, by_largest, by_smallest)

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        space = self.pools or self._supernet.space
        for task in (result.task for result in results):
            for rounds_trained, arch in ((self.largest_seen, space.largest), (self.smallest_seen, space.smallest)):
                if task.arch == arch:
                    rounds_trained[task.client] = rounds_trained.get(task.client, 0) + 1
