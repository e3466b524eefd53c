"""Contract of assignments."""

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from lit_fednas.assignment import Assignment, Round
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, assert_alike, global_seed, reloaded
from lit_fednas.tiers import Population, Tier

CLIENTS = 12
#: Tiers without limits, so that only the assignments distinguish them; every second client is strong.
TIERS = (Tier("weak", {}), Tier("strong", {}))


def plan(
    assignment: Assignment, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
) -> list[ClientTask]:
    """Returns a round's plan."""
    population = getattr(assignment, "_population", Population(1000))
    return assignment.plan(Round(round, cohort, space, population, rng))


def drawn_cohort(round: int, size: int = 5) -> list[int]:
    """Returns the round's cohort."""
    return sorted(numpy_generator(0, "cohort", round).choice(CLIENTS, size=size, replace=False).tolist())


class AssignmentContract(Contract):
    """The contract of assignments; ``instances`` make assignments.

    Attributes:
        supernet: Function that makes the shared weights; the assignment deals out their architectures.
        tiers: Tiers that the clients belong to in turn; empty for clients without tiers.
        most_tasks: Maximum number of clients in a cohort with a task; ``None`` if every client has one.

    Example:
        >>> from lit_fednas.assignment import ByTier
        >>> class TestByTier(AssignmentContract):
        ...     instances = {"two": lambda: ByTier({"weak": "smallest", "strong": "largest"})}
        ...     tiers = TIERS
    """

    supernet: ClassVar[Callable[[], Supernet]] = staticmethod(  # it has many architectures
        partial(networks.elastic, stage_widths=[64, 128], depths=[0, 1, 2], ratios=[0.1, 0.18, 0.25], divisor=8)
    )
    tiers: ClassVar[tuple[Tier, ...]] = ()
    most_tasks: ClassVar[int | None] = None

    @property
    def net(self) -> Supernet:
        """The shared weights."""
        return networks.cached_net("supernet", type(self).supernet)

    def ready(self, net: Supernet | None = None) -> Assignment:
        """Returns a fresh assignment after its setup."""
        assignment: Assignment = self.case.make()
        positions = tuple(client % len(self.tiers) for client in range(CLIENTS)) if self.tiers else ()
        assignment.setup(net or self.net, Population(CLIENTS, self.tiers, positions))
        return assignment

    def rounds(self, assignment: Assignment, first: int, last: int) -> list[list[Any]]:
        """Plans rounds, lets the assignment observe their results, and returns the architectures of each round."""
        archs = []
        for number in range(first, last):
            rng = numpy_generator(0, "assignment", number)
            tasks = plan(assignment, number, drawn_cohort(number), assignment._supernet.space, rng)
            losses = [1.0 + (task.client * number) % 5 for task in tasks]
            assignment.observe([ClientResult(t, num_seen=4, loss=loss) for t, loss in zip(tasks, losses, strict=True)])
            archs.append([task.arch for task in tasks])
        return archs

    def check_tasks_are_of_the_cohort_and_of_the_space(self) -> None:
        """Every client of the cohort has one task, in the cohort's order, with an architecture of the space."""
        space, assignment = self.net.space, self.ready()
        for number, size in itertools.product(range(5), (1, 2, 3, CLIENTS)):
            clients = drawn_cohort(number, size)
            tasks = plan(assignment, number, clients, space, np.random.default_rng(number))
            assert isinstance(tasks, list)
            assert clients == drawn_cohort(number, size), "the cohort was written to"
            assert all(task.round == number for task in tasks)
            assert [space.parse(str(task.arch)) for task in tasks] == [task.arch for task in tasks]
            clients_with_task = [task.client for task in tasks]
            if self.most_tasks is None:
                assert clients_with_task == clients
            else:
                assert len(clients_with_task) == len(set(clients_with_task)) == min(size, self.most_tasks)
                assert set(clients_with_task) <= set(clients)
        assert plan(assignment, 5, [], space, np.random.default_rng(5)) == []

    def check_a_plan_changes_no_state(self) -> None:
        """Two plans of a round are equal, and leave the round's values and the state unchanged."""
        assignment = self.ready()
        self.rounds(assignment, 0, 3)
        state, round_arguments = copy.deepcopy(assignment.state_dict()), (3, drawn_cohort(3), self.net.space)
        rngs = [numpy_generator(0, "assignment", 3) for _ in range(2)]
        first, second = (Round(*round_arguments, assignment._population, rng) for rng in rngs)
        assert assignment.plan(first) == assignment.plan(second)
        assert first.values == {}, "the plan has changed the round's values"
        assert_alike(assignment.state_dict(), state)

    def check_a_space_of_one(self) -> None:
        """A supernet with one architecture is dealt out, or refused if the assignment is for another kind."""
        net = networks.cached_net("plain", networks.plain)
        kind, name = self.case.make().supernet_kind, type(self.case.make()).__name__
        if kind is not None and not isinstance(net, kind):
            with pytest.raises(ConfigError, match=f"model.assignment: {name} does not work with model.supernet Plain"):
                self.ready(net)
        else:
            assert all(set(archs) == {net.space.largest} for archs in self.rounds(self.ready(net), 0, 3))

    def check_the_generator_decides(self) -> None:
        """Equal generators give equal plans; global generators are neither read nor moved."""
        with global_seed(0):
            first = self.rounds(self.ready(), 0, 6)
        with global_seed(1):
            assert self.rounds(self.ready(), 0, 6) == first

    def check_state_is_plain_and_continues_alike(self) -> None:
        """A saved state holds tensors and plain values, does not change, and restores later plans."""
        straight = self.ready()
        self.rounds(straight, 0, 7)
        state = straight.state_dict()
        saved = reloaded(state)
        assert_alike(saved, state)
        expected = self.rounds(straight, 7, 20)
        final = reloaded(straight.state_dict())
        for assignment in (self.ready(), straight):  # a new process, and the same process
            assignment.load_state_dict(state)
            assert_alike(assignment.state_dict(), saved)
            assert self.rounds(assignment, 7, 20) == expected
            assert_alike(assignment.state_dict(), final)
            assert_alike(state, saved)

    def check_a_foreign_state_is_refused(self) -> None:
        """A state with other entries is refused."""
        with pytest.raises(CheckpointError, match="assignment"):
            self.ready().load_state_dict({"somebody_elses": [1, 2, 3]})
