"""Candidates are trained and tested by groups of clients: FedNAS, sections 4.2 and 4.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets import Model, PrunedSequence
from lit_fednas.tiers import ArchitectureCosts


@dataclass(frozen=True)
class CandidateSchedule:
    """Which clients try which candidates in a round; a value of the round, given by ``PruneByBudgets``.

    Attributes:
        candidates: The candidates that have not been dropped, each with the number of its group.
        groups: The clients of each group.
    """

    candidates: tuple[tuple[Model, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


@checked("assignment")
class CandidateGroups(Assignment):
    """Every candidate is trained and tested by its group of clients.

    The clients of a group that are in the round's cohort take part. A client of a group with several candidates
    trains one after the other. Without candidates all clients train the newest model: where the round's schedule
    is empty, to measure it; where there is none, as many clients as ``initial_clients`` says.

    Args:
        initial_clients: The number of clients of the cohort that train the initial model in a round; all if not
            given.

    Raises:
        ConfigError: A setting is out of range, or the supernet has no candidates (reported before training).
    """

    supernet_kind: ClassVar[type] = PrunedSequence
    reads = (CandidateSchedule,)

    def __init__(self, initial_clients: PositiveInt | None = None) -> None:
        self.initial_clients = initial_clients

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        schedule = round.values.get(CandidateSchedule)
        if schedule is None or not schedule.candidates:
            newest = self._newest
            return [round.task(client, newest) for client in self._clients(round, measuring=schedule is not None)]
        cohort = set(round.cohort)
        return [
            round.task(client, arch, group)
            for arch, group in schedule.candidates
            for client in schedule.groups[group]
            if client in cohort
        ]

    def _clients(self, round: Round, measuring: bool) -> list[int]:
        """Returns the clients that train the newest model, ascending."""
        cohort = list(round.cohort)
        if measuring or self.initial_clients is None or self.initial_clients >= len(cohort):
            return cohort
        chosen = round.rng.choice(len(cohort), size=self.initial_clients, replace=False)
        return [cohort[index] for index in sorted(chosen)]

    @property
    def _newest(self) -> Model:
        return Model(len(self._supernet.models) - 1)

    @override
    def deployed(self, client: int) -> Model:
        """Returns the largest model that a client's tier affords; without tiers the newest, which is the smallest.

        Args:
            client: The client's number.

        Raises:
            ConfigError: The tier cannot afford any model.
        """
        tier = self._population.tier(client)
        if tier is None:
            return self._newest
        costs = ArchitectureCosts(self._supernet)
        affordable = [arch for arch in self._supernet.space.each() if costs.excess(arch, tier) == 0]
        if not affordable:
            raise ConfigError(
                f"model.tiers: no model of the sequence fits tier {tier.name!r} yet; raise its limits, or "
                f"continue pruning"
            )
        return affordable[-1]
