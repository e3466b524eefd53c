"""SuperFed's sandwich and tracking sandwich (section 2.4; "S" and "TS" of Table 2).

One client of the cohort trains the largest architecture, one the smallest, the others random ones. The
sandwich picks the two at random; the tracking sandwich picks those that have been given the smallest and the
largest least often, so that both bounds see all data in time. The paper leaves open what happens in a cohort
of one (here: the largest, which the aggregation needs, section 2.3), how ties are broken (at random), which of
the two is chosen first (the largest), and whether a random draw that happens to be the smallest or the largest
counts as one (it does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.errors import CheckpointError
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import Population


class Sandwich(Assignment):
    """One largest, one smallest, the rest random; who gets which is random.

    Example:
        >>> from lit_fednas.supernets import ElasticSpace
        >>> space = ElasticSpace((0, 1), (0.1, 0.25), (256, 512), 8)
        >>> archs = Sandwich().assign(0, [0, 1, 2], space, np.random.default_rng(0))
        >>> archs.count(space.largest) >= 1 and archs.count(space.smallest) >= 1
        True
    """

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Draws the two bounds' places and the other architectures."""
        largest, smallest = self.bounds(cohort, rng)
        archs = []
        for place in range(len(cohort)):
            if place == largest:
                archs.append(space.largest)
            elif place == smallest:
                archs.append(space.smallest)
            else:
                archs.append(space.sample(rng))
        return archs

    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        """Places in the cohort of the clients with the largest and the smallest (-1: nobody)."""
        places = rng.permutation(len(cohort))
        return int(places[0]), int(places[1]) if len(places) > 1 else -1


class TrackingSandwich(Sandwich):
    """A sandwich whose bounds go to the clients that have had them least often.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((3, 8, 8), 5, stem_width=8, stage_widths=[16], depths=[0, 1])
        >>> tracking = TrackingSandwich()
        >>> tracking.setup(net, Population(num_clients=2))
        >>> given = [tracking.assign(t, [0, 1], net.space, np.random.default_rng(t)) for t in range(2)]
        >>> given[0] == given[1][::-1]
        True
    """

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Starts counting at zero."""
        self._largest_seen = np.zeros(population.num_clients, dtype=np.int64)
        self._smallest_seen = np.zeros(population.num_clients, dtype=np.int64)

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Assigns, and counts what was assigned."""
        archs = super().assign(round, cohort, space, rng)
        for client, arch in zip(cohort, archs, strict=True):
            self._largest_seen[client] += arch == space.largest
            self._smallest_seen[client] += arch == space.smallest
        return archs

    def bounds(self, cohort: Sequence[int], rng: np.random.Generator) -> tuple[int, int]:
        """The least-seen clients, ties broken at random."""
        ties = rng.random(len(cohort))
        clients = np.asarray(cohort)
        by_largest = np.lexsort((ties, self._largest_seen[clients]))
        by_smallest = np.lexsort((rng.random(len(cohort)), self._smallest_seen[clients]))
        largest = int(by_largest[0])
        smallest = next((int(place) for place in by_smallest if place != largest), -1)
        return largest, smallest

    def state_dict(self) -> dict[str, Any]:
        """How often each client has been given the bounds."""
        return {
            "largest_seen": self._largest_seen.tolist(),
            "smallest_seen": self._smallest_seen.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the counts back."""
        if set(state) != {"largest_seen", "smallest_seen"}:
            raise CheckpointError(
                "assignment: the checkpoint holds no counts for TrackingSandwich; "
                "use the assignment that the run was started with"
            )
        for counts in (state["largest_seen"], state["smallest_seen"]):
            if len(counts) != len(self._largest_seen):
                raise CheckpointError(
                    f"assignment: the checkpoint counts {len(counts)} clients, the data have "
                    f"{len(self._largest_seen)}; set data.num_clients as the run had it"
                )
        self._largest_seen = np.array(state["largest_seen"], dtype=np.int64)
        self._smallest_seen = np.array(state["smallest_seen"], dtype=np.int64)
