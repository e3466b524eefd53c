"""FedNAS' groups of clients, each of which trains and tests candidates (sections 4.2 and 4.3)."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets import Model, PrunedSequence


@dataclass(frozen=True)
class CandidateSchedule:
    """The candidates of a round and their groups of clients, a value of the round set by ``PruneByBudgets``."""

    candidates: tuple[tuple[Model, int], ...] = ()  # remaining candidates with their group's number
    groups: tuple[tuple[int, ...], ...] = ()  # the clients of each group


@checked("assignment")
@dataclass(eq=False)
class CandidateGroups(Assignment):
    """Every candidate is trained and tested by its group of clients.

    The group's clients in the round's cohort take part; a client trains several candidates one after the other.
    Without candidates clients train the newest model: all clients if the round's schedule is empty, to measure the
    model; ``initial_clients`` if the round has no schedule.

    Args:
        initial_clients: Number of clients of the cohort that train the initial model in a round; by default all.

    Raises:
        ConfigError: A setting is out of range, or the supernet has no candidates (reported before training).
    """

    supernet_kind: ClassVar[type] = PrunedSequence
    reads = (CandidateSchedule,)
    requires = ("prune_by_budgets",)

    initial_clients: PositiveInt | None = None

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        schedule, cohort = round.values.get(CandidateSchedule), list(round.cohort)
        if schedule is not None and schedule.candidates:
            present = set(cohort)
            return [
                round.task(client, arch, group)
                for arch, group in schedule.candidates
                for client in schedule.groups[group]
                if client in present
            ]
        max_clients = self.initial_clients
        if schedule is None and max_clients is not None and max_clients < len(cohort):
            cohort = [cohort[index] for index in sorted(round.rng.choice(len(cohort), size=max_clients, replace=False))]
        return [round.task(client, self._newest) for client in cohort]

    @property
    def _newest(self) -> Model:
        return Model(len(self._supernet.models) - 1)

    @override
    def deployed(self, client: int) -> Model:
        """Returns the largest model within the limits of a client's tier; without tiers the newest, smallest model."""
        if not self._population.tiers:
            return self._newest
        tier = self._population.tier(client)
        affordable = [arch for arch in self._supernet.space.each() if self._costs.excess(arch, tier) == 0]
        if not affordable:
            raise ConfigError(
                f"model.tiers: no model of the sequence fits tier {tier.name!r} yet; raise its limits, or prune more"
            )
        return affordable[-1]
