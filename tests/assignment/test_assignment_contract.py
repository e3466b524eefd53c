"""What every assignment promises, for every instance in ``instances.py``."""

import copy
import inspect
import io
import pkgutil
from importlib import import_module

import numpy as np
import pytest
import torch

import lit_fednas.assignment
from lit_fednas.assignment import Assignment
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import BaseNetworks, Ladder, PathCNN, SearchSpace, Supernet
from lit_fednas.supernets.elastic_space import ElasticSpace
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.supernet import WidthSupernet
from tests.assignment.instances import (
    INSTANCES,
    OF_BASES,
    OF_OPERATORS,
    OF_SEQUENCES,
    OF_SUITES,
    OF_WIDTHS,
    plan,
    planned,
    set_up,
)
from tests.supernets.instances import kept_instance
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite

CLIENTS = 12
SPACE = ElasticSpace((0, 1, 2), (0.1, 0.18, 0.25), (256, 512), 8)


CNN = SlicedCNN((4, 8))
#: What an assignment wants where not any space will do.
NETS: dict[str, Supernet] = {
    **dict.fromkeys(OF_OPERATORS, PathCNN((3, 8, 8), 5, width=8, stage_layers=[2, 1], strides=[2, 1])),
    **dict.fromkeys(OF_WIDTHS, WidthSupernet((3, 8, 8), 5, CNN, widths=[1, 0.5, 0.25])),
    **dict.fromkeys(OF_BASES, BaseNetworks((3, 8, 8), 5, CNN, count=4)),
    **dict.fromkeys(OF_SUITES, grown_suite()),
    **dict.fromkeys(OF_SEQUENCES, pruned_sequence(steps=2)),
}
SPECIAL = {**OF_OPERATORS, **OF_WIDTHS, **OF_BASES, **OF_SUITES, **OF_SEQUENCES}
SPACES = {type(make()): NETS[name].space for name, make in SPECIAL.items()}


def space_of(name: str) -> SearchSpace:
    return NETS[name].space if name in NETS else SPACE


def ready(name: str, space: SearchSpace | None = None) -> Assignment:
    assignment = {**INSTANCES, **SPECIAL}[name]()
    set_up(assignment, NETS.get(name) or space or SPACE, CLIENTS)
    return assignment


def cohort(round: int, size: int = 5) -> list[int]:
    return sorted(numpy_generator(0, "cohort", round).choice(CLIENTS, size=size, replace=False).tolist())


def rounds(assignment: Assignment, first: int, last: int, space: SearchSpace | None = None) -> list[list]:
    """Plans rounds and lets the assignment observe them; what the clients' losses are belongs to the round."""
    space = space or SPACES.get(type(assignment), SPACE)
    archs = []
    for t in range(first, last):
        tasks = plan(assignment, t, cohort(t), space, numpy_generator(0, "assignment", t))
        assignment.observe([ClientResult(task, num_seen=4, loss=1.0 + (task.client * t) % 5) for task in tasks])
        archs.append([task.arch for task in tasks])
    return archs


pytestmark = pytest.mark.parametrize("name", sorted({**INSTANCES, **SPECIAL}))


@pytest.mark.parametrize("size", [1, 2, 3, CLIENTS])
def test_tasks_are_of_the_cohort_and_of_the_space(name: str, size: int) -> None:
    assignment, space = ready(name), space_of(name)
    for t in range(5):
        clients = cohort(t, size)
        tasks = plan(assignment, t, clients, space, np.random.default_rng(t))
        assert isinstance(tasks, list)
        assert all(task.round == t for task in tasks)
        assert [space.parse(str(task.arch)) for task in tasks] == [task.arch for task in tasks]
        if name == "candidate-groups-few":
            assert len(tasks) == min(size, 2)
            assert {task.client for task in tasks} <= set(clients)
        else:
            assert [task.client for task in tasks] == clients
    assert plan(assignment, 5, [], space, np.random.default_rng(5)) == []


def test_a_plan_changes_no_state(name: str) -> None:
    assignment = ready(name)
    rounds(assignment, 0, 3)
    state = copy.deepcopy(assignment.state_dict())
    twice = [plan(assignment, 3, cohort(3), space_of(name), numpy_generator(0, "assignment", 3)) for _ in range(2)]
    assert twice[0] == twice[1]
    assert assignment.state_dict() == state


def test_a_space_of_one(name: str) -> None:
    if name in SPECIAL:
        kind = type(SPECIAL[name]()).__name__
        words = rf"model.assignment: {kind} does not work with model.supernet PlainNetwork|model.tiers: is null"
        with pytest.raises(ConfigError, match=words):
            set_up(SPECIAL[name](), kept_instance("plain"), CLIENTS)
        return
    assignment = ready(name, Ladder(["whole"]))
    assert rounds(assignment, 0, 3, Ladder(["whole"])) == [["whole"] * 5] * 3


def test_the_generator_decides(name: str) -> None:
    np.random.seed(0)  # noqa: NPY002
    first = rounds(ready(name), 0, 6)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    assert rounds(ready(name), 0, 6) == first


def test_the_cohort_is_left_alone(name: str) -> None:
    clients = cohort(0)
    planned(ready(name), 0, clients, space_of(name), np.random.default_rng(0))
    assert clients == cohort(0)


def test_state_is_plain_and_continues_alike(name: str) -> None:
    straight = ready(name)
    rounds(straight, 0, 7)
    stream = io.BytesIO()
    torch.save(straight.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert state == straight.state_dict()
    resumed = ready(name)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert rounds(resumed, 7, 20) == rounds(straight, 7, 20)
    assert resumed.state_dict() == straight.state_dict()


def test_a_saved_state_stays_as_it_was(name: str) -> None:
    assignment = ready(name)
    rounds(assignment, 0, 3)
    state = assignment.state_dict()
    kept = copy.deepcopy(state)
    rounds(assignment, 3, 9)
    assert state == kept
    assignment.load_state_dict(state)
    rounds(assignment, 3, 9)
    assert state == kept


def test_putting_a_state_back_undoes_a_round(name: str) -> None:
    assignment = ready(name)
    rounds(assignment, 0, 4)
    state = assignment.state_dict()
    first = rounds(assignment, 4, 5)
    assignment.load_state_dict(state)
    assert rounds(assignment, 4, 5) == first


def test_a_foreign_state_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="assignment"):
        ready(name).load_state_dict({"somebody_elses": [1, 2, 3]})


def test_every_assignment_has_an_instance(name: str) -> None:
    for module in pkgutil.walk_packages(lit_fednas.assignment.__path__, "lit_fednas.assignment."):
        import_module(module.name)
    found, todo = set(), [Assignment]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.") and not inspect.isabstract(kind):
                found.add(kind)
    missing = sorted(
        kind.__name__ for kind in found - {type(make()) for make in [*INSTANCES.values(), *SPECIAL.values()]}
    )
    assert not missing, f"add instances of {missing} to tests/assignment/instances.py"
