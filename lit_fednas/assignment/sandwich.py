"""Random architectures for all (SuperFed's baseline, section 3.1), and sandwiches (section 2.4; Table 2).

The paper leaves open what happens in a cohort of one (here: the largest, which the aggregation needs, section 2.3), how
ties are broken (at random), which of the two is chosen first (the largest), and whether a random draw that is one of
the two counts as one (it does). Where tiers limit who can train a bound of a pool, it goes to one of
them, or to nobody.
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
    """Every client trains an architecture drawn from the space, a new one in each round ("R" of Table 2)."""

    depends_on = "client"

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, round.space.sample(round.rng)) for client in round.cohort]


class Sandwich(Assignment):
    """One client trains the largest architecture, one the smallest (both drawn), the others random ones.

    Args:
        pool: What is drawn from, with equal chances, in place of the whole space, as in DeepFedNAS; the two bounds are
            then the pool's architectures of the most and the fewest MACs, and a client is given what its tier affords.

    Raises:
        ConfigError: No architecture of the pool fits a tier (reported before training).
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
        among = self.pools or round.space
        archs = {largest: among.largest, smallest: among.smallest}
        return [
            round.task(client, archs[position] if position in archs else self._drawn(client, round))
            for position, client in enumerate(round.cohort)
        ]

    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        """Returns the positions of the clients that train the largest and the smallest architecture; -1 for none."""
        positions = rng.permutation(len(cohort))
        return self._first_able(cohort, positions, positions)

    def _first_able(self, cohort: Sequence[int], by_largest: np.ndarray, by_smallest: np.ndarray) -> tuple[int, int]:
        """Returns the first position of each order whose client can train the bound, the largest being given first."""

        def first(order: np.ndarray, bound: str, taken: int = -1) -> int:
            able = (int(place) for place in order if place != taken and self._affords(cohort[place], bound))
            return next(able, -1)

        largest = first(by_largest, "largest")
        return largest, first(by_smallest, "smallest", largest)

    def _affords(self, client: int, bound: str) -> bool:
        return self.pools is None or getattr(self.pools, bound) in self.pools.of_client(client)[0]

    def _drawn(self, client: int, round: Round) -> Any:
        return round.space.sample(round.rng) if self.pools is None else self.pools.draw(client, round.rng)


class TrackingSandwich(Sandwich):
    """A sandwich whose bounds go to the clients that trained them least often, so that both see all data in time."""

    state_names = ("largest_seen", "smallest_seen")

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self.largest_seen: dict[int, int] = {}  # how often each client has trained it
        self.smallest_seen: dict[int, int] = {}

    @override
    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        seen = self.largest_seen, self.smallest_seen
        counts = (np.array([numbers.get(client, 0) for client in cohort]) for numbers in seen)
        by_largest, by_smallest = (np.lexsort((rng.random(len(cohort)), count)) for count in counts)
        return self._first_able(cohort, by_largest, by_smallest)

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        space = self.pools or self._supernet.space
        for task in (result.task for result in results):
            for seen, arch in ((self.largest_seen, space.largest), (self.smallest_seen, space.smallest)):
                if task.arch == arch:
                    seen[task.client] = seen.get(task.client, 0) + 1
