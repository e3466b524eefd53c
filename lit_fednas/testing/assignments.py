"""What every assignment promises."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lit_fednas.assignment import Assignment, Round
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import ElasticResNet, SearchSpace, Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract
from lit_fednas.tiers import Population, Tier

CLIENTS = 12
#: Every second client is strong; there are no limits, so that tiers are what the assignments say of them.
TIERS = (Tier("weak", {}), Tier("strong", {}))


def elastic() -> ElasticResNet:
    """Returns an elastic network of many architectures."""
    return networks.elastic(stage_widths=[64, 128], depths=[0, 1, 2], ratios=[0.1, 0.18, 0.25], divisor=8)


def plan(
    assignment: Assignment, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
) -> list[ClientTask]:
    """Returns a round's plan."""
    population = getattr(assignment, "_population", Population(1000))
    return assignment.plan(Round(round, cohort, space, population, rng))


def drawn_cohort(round: int, size: int = 5) -> list[int]:
    """Returns the round's cohort."""
    return sorted(numpy_generator(0, "cohort", round).choice(CLIENTS, size=size, replace=False).tolist())


def rounds(assignment: Assignment, first: int, last: int, space: SearchSpace[Any]) -> list[list[Any]]:
    """Plans rounds, lets the assignment observe them, and returns the architectures of the tasks of each."""
    archs = []
    for t in range(first, last):
        tasks = plan(assignment, t, drawn_cohort(t), space, numpy_generator(0, "assignment", t))
        assignment.observe([ClientResult(task, num_seen=4, loss=1.0 + (task.client * t) % 5) for task in tasks])
        archs.append([task.arch for task in tasks])
    return archs


class AssignmentContract(Contract):
    """The contract of assignments; ``instances`` make assignments.

    Attributes:
        supernet: Makes the shared weights whose architectures are dealt out.
        tiers: The clients' tiers, which they belong to in turns; empty for clients without tiers.
        most_tasks: How many clients of a cohort are given a task, at most; all if ``None``.

    Example:
        >>> from lit_fednas.assignment import ByTier
        >>> class TestByTier(AssignmentContract):
        ...     instances = {"two": lambda: ByTier({"weak": "smallest", "strong": "largest"})}
        ...     tiers = TIERS
    """

    supernet: ClassVar[Callable[[], Supernet]] = staticmethod(elastic)
    tiers: ClassVar[tuple[Tier, ...]] = ()
    most_tasks: ClassVar[int | None] = None

    @property
    def net(self) -> Supernet:
        """The shared weights."""
        return networks.kept("supernet", type(self).supernet)

    def ready(self) -> Assignment:
        """Returns a fresh assignment that is set up."""
        return self.set_up(self.case.make(), self.net)

    def set_up(self, assignment: Assignment, net: Supernet) -> Assignment:
        """Sets an assignment up for a supernet and returns it."""
        places = tuple(client % len(self.tiers) for client in range(CLIENTS)) if self.tiers else ()
        assignment.setup(net, Population(CLIENTS, self.tiers, places) if self.tiers else Population(CLIENTS))
        return assignment

    def check_tasks_are_of_the_cohort_and_of_the_space(self) -> None:
        """Every client of the cohort has one task, in the cohort's order, with an architecture of the space."""
        space = self.net.space
        assignment = self.ready()
        for t, size in itertools.product(range(5), (1, 2, 3, CLIENTS)):
            clients = drawn_cohort(t, size)
            tasks = plan(assignment, t, clients, space, np.random.default_rng(t))
            assert isinstance(tasks, list)
            assert all(task.round == t for task in tasks)
            assert [space.parse(str(task.arch)) for task in tasks] == [task.arch for task in tasks]
            asked = [task.client for task in tasks]
            if self.most_tasks is None:
                assert asked == clients
            else:
                assert len(asked) == len(set(asked)) == min(size, self.most_tasks)
                assert set(asked) <= set(clients)
        assert plan(assignment, 5, [], space, np.random.default_rng(5)) == []

    def check_a_plan_changes_no_state(self) -> None:
        """A plan is made twice alike and leaves the state as it was, which changes in ``observe`` alone."""
        space = self.net.space
        assignment = self.ready()
        rounds(assignment, 0, 3, space)
        state = copy.deepcopy(assignment.state_dict())
        cohort = drawn_cohort(3)
        twice = [plan(assignment, 3, cohort, space, numpy_generator(0, "assignment", 3)) for _ in range(2)]
        assert twice[0] == twice[1]
        assert assignment.state_dict() == state

    def check_a_space_of_one(self) -> None:
        """A supernet of one architecture is dealt out, or refused if the assignment is for another kind."""
        assignment, net = self.case.make(), networks.kept("plain", networks.plain)
        kind = type(assignment).supernet_kind
        if kind is not None and not isinstance(net, kind):
            words = f"model.assignment: {type(assignment).__name__} does not work with model.supernet PlainNetwork"
            with pytest.raises(ConfigError, match=words):
                self.set_up(assignment, net)
            return
        self.set_up(assignment, net)
        assert all(set(archs) == {net.space.largest} for archs in rounds(assignment, 0, 3, net.space))

    def check_the_generator_decides(self) -> None:
        """Equal generators plan alike, whatever the global generators are."""
        space = self.net.space
        np.random.seed(0)  # noqa: NPY002
        first = rounds(self.ready(), 0, 6, space)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        assert rounds(self.ready(), 0, 6, space) == first

    def check_the_cohort_is_left_alone(self) -> None:
        """The list of clients is not written to."""
        space = self.net.space
        clients = drawn_cohort(0)
        plan(self.ready(), 0, clients, space, np.random.default_rng(0))
        assert clients == drawn_cohort(0)

    def check_state_is_plain_and_continues_alike(self) -> None:
        """A saved state can be read as weights alone, and a run that goes on from it plans as if not stopped."""
        space = self.net.space
        straight = self.ready()
        rounds(straight, 0, 7, space)
        stream = io.BytesIO()
        torch.save(straight.state_dict(), stream)
        stream.seek(0)
        state = torch.load(stream, weights_only=True)
        assert state == straight.state_dict()
        resumed = self.ready()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert rounds(resumed, 7, 20, space) == rounds(straight, 7, 20, space)
        assert resumed.state_dict() == straight.state_dict()

    def check_a_saved_state_stays_as_it_was(self) -> None:
        """Later rounds do not write into a state that was saved or loaded."""
        space = self.net.space
        assignment = self.ready()
        rounds(assignment, 0, 3, space)
        state = assignment.state_dict()
        kept = copy.deepcopy(state)
        rounds(assignment, 3, 9, space)
        assert state == kept
        assignment.load_state_dict(state)
        rounds(assignment, 3, 9, space)
        assert state == kept

    def check_putting_a_state_back_undoes_a_round(self) -> None:
        """After loading an earlier state, the same round is planned alike."""
        space = self.net.space
        assignment = self.ready()
        rounds(assignment, 0, 4, space)
        state = assignment.state_dict()
        first = rounds(assignment, 4, 5, space)
        assignment.load_state_dict(state)
        assert rounds(assignment, 4, 5, space) == first

    def check_a_foreign_state_is_refused(self) -> None:
        """A state with other entries is refused."""
        with pytest.raises(CheckpointError, match="assignment"):
            self.ready().load_state_dict({"somebody_elses": [1, 2, 3]})
