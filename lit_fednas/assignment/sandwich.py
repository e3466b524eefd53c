"""The same or random architectures for all (SuperFed's baselines, section 3.1), and sandwiches (section 2.4; Table 2).

The paper leaves open what happens in a cohort of one (here: the largest, which the aggregation needs, section 2.3), how
ties are broken (at random), which of the two is chosen first (the largest), and whether a random draw that is one of
the two counts as one (it does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population

_LARGEST, _SMALLEST = "largest_seen", "smallest_seen"


class FixedArchitecture(Assignment):
    """Every client trains the same architecture in every round: federated averaging, and SuperFed's iFedAvg.

    Args:
        arch: ``largest``, ``smallest``, or an architecture as the space writes it.

    Raises:
        ConfigError: The space has no such architecture (reported before training).
    """

    depends_on = "client"

    def __init__(self, arch: str = "largest") -> None:
        self.arch = arch

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        supernet.space.named(self.arch)

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        arch = round.space.named(self.arch)
        return [round.task(client, arch) for client in round.cohort]

    @override
    def deployed(self, client: int) -> Any:
        return self._supernet.space.named(self.arch)


class RandomArchitectures(Assignment):
    """Every client trains an architecture drawn from the space, a new one in each round ("R" of Table 2)."""

    depends_on = "client"

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        return [round.task(client, round.space.sample(round.rng)) for client in round.cohort]


class Sandwich(Assignment):
    """One client trains the largest architecture, one the smallest (both drawn), the others random ones."""

    depends_on = "cohort"

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        if not round.cohort:
            return []
        largest, smallest = self.bounds(round.cohort, round.rng)
        bounds = {largest: round.space.largest, smallest: round.space.smallest}
        return [
            round.task(client, bounds[position] if position in bounds else round.space.sample(round.rng))
            for position, client in enumerate(round.cohort)
        ]

    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        """Returns the positions of the clients that train the largest and the smallest architecture; -1 for none."""
        positions = rng.permutation(len(cohort))
        return int(positions[0]), int(positions[1]) if len(positions) > 1 else -1


class TrackingSandwich(Sandwich):
    """A sandwich whose bounds go to the clients that trained them least often, so that both see all data in time."""

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._seen: dict[str, Counter[int]] = {name: Counter() for name in (_LARGEST, _SMALLEST)}

    @override
    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        ties = rng.random(len(cohort))
        by_largest = np.lexsort((ties, self._counts(_LARGEST, cohort)))
        by_smallest = np.lexsort((rng.random(len(cohort)), self._counts(_SMALLEST, cohort)))
        largest = int(by_largest[0])
        smallest = next((int(position) for position in by_smallest if position != largest), -1)
        return largest, smallest

    def _counts(self, name: str, cohort: Sequence[int]) -> np.ndarray:
        return np.array([self._seen[name][client] for client in cohort])

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        space = self._supernet.space
        for task in (result.task for result in results):
            for name, arch in ((_LARGEST, space.largest), (_SMALLEST, space.smallest)):
                if task.arch == arch:
                    self._seen[name][task.client] += 1

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: dict(counts) for name, counts in self._seen.items()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # versions before 0.3 wrote the counts of all clients, as a list
        seen = {name: dict(enumerate(counts)) if isinstance(counts, list) else counts for name, counts in state.items()}
        for counts in seen.values():
            self.check_clients(counts)
        self._seen = {name: +Counter(counts) for name, counts in seen.items()}
