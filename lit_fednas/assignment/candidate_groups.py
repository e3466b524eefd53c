"""FedNAS' groups of clients, each of which trains and tests a candidate (sections 4.2 and 4.3)."""

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
    """Which clients try which candidates in a round; a value of the round, given by ``PruneByBudgets``."""

    candidates: tuple[tuple[Model, int], ...] = ()  # that have not been dropped, each with its group
    groups: tuple[tuple[int, ...], ...] = ()  # the clients of each group


@checked("assignment")
@dataclass(eq=False)
class CandidateGroups(Assignment):
    """Every candidate is trained and tested by its group of clients.

    The clients of a group that are in the round's cohort take part; of several candidates a client trains one after
    the other. Without candidates clients train the newest model: all of them if the round's schedule is empty, to
    measure it; ``initial_clients`` of them if the round has no schedule.

    Args:
        initial_clients: How many clients of the cohort train the initial model in a round; all if not given.

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
        few = self.initial_clients
        if schedule is None and few is not None and few < len(cohort):
            cohort = [cohort[index] for index in sorted(round.rng.choice(len(cohort), size=few, replace=False))]
        return [round.task(client, self._newest) for client in cohort]

    @property
    def _newest(self) -> Model:
        return Model(len(self._supernet.models) - 1)

    @override
    def deployed(self, client: int) -> Model:
        """Returns the largest model that a client's tier affords; without tiers the newest, which is the smallest."""
        if not self._population.tiers:
            return self._newest
        tier = self._population.tier(client)
        affordable = [arch for arch in self._supernet.space.each() if self._costs.excess(arch, tier) == 0]
        if not affordable:
            raise ConfigError(
                f"model.tiers: no model of the sequence fits tier {tier.name!r} yet; raise its limits, or prune more"
            )
        return affordable[-1]
