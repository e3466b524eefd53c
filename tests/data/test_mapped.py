"""One copy of the examples for the processes of a machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.data import Examples
from lit_fednas.data.mapped import load_once
from lit_fednas.errors import DataError


class Machine:
    """A trainer's view of several processes, as one after the other would have it."""

    def __init__(self) -> None:
        self.written = True
        self.barriers: list[list[str]] = []

    def trainer(self, local_rank: int) -> Any:
        def agreed(written: bool) -> bool:
            self.written = self.written and written
            return self.written

        strategy = SimpleNamespace(
            broadcast=lambda value: "token",
            reduce_boolean_decision=agreed,
            barrier=lambda: self.barriers.append([path.name for path in self.folder.iterdir()]),
        )
        return SimpleNamespace(world_size=2, local_rank=local_rank, node_rank=0, strategy=strategy)

    folder: Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    made = Machine()
    made.folder = tmp_path / "lit-fednas-token-0"
    return made


def examples() -> Examples:
    sites = np.array(["a", "b", "b", "ä"])
    return Examples(torch.arange(8.0).view(4, 2).T.contiguous().T, torch.tensor([3, 1, 0, 2]), {"site": sites})


def never() -> Examples:
    raise AssertionError("loaded by a process that need not")


def test_the_first_process_loads_and_the_others_map(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as kept:
        kept.setattr("shutil.rmtree", lambda *args, **settings: None)  # the others are still to come
        first = load_once(examples, machine.trainer(0))
    other = load_once(never, machine.trainer(1))
    for found in (first, other):
        assert found is not None
        assert torch.equal(found.inputs, examples().inputs)
        assert torch.equal(found.targets, examples().targets)
        assert found.columns["site"].tolist() == ["a", "b", "b", "ä"]
    assert [sorted(names) for names in machine.barriers] == [["columns.npz", "tensors.pt"]] * 2


def test_files_are_removed_and_what_was_mapped_stays(machine: Machine) -> None:
    found = load_once(examples, machine.trainer(0))
    assert not machine.folder.exists()
    assert found is not None
    assert found.inputs.sum() == 28


def test_every_process_raises_what_the_first_does(machine: Machine) -> None:
    def fail() -> Examples:
        raise DataError("data.source: is gone")

    for rank in (0, 1):
        with pytest.raises(DataError, match="is gone"):
            load_once(fail, machine.trainer(rank))
    assert not machine.folder.exists()


def test_a_split_that_does_not_exist(machine: Machine) -> None:
    assert load_once(lambda: None, machine.trainer(0)) is None
    assert load_once(lambda: None, machine.trainer(1)) is None


def test_one_process_loads_for_itself(machine: Machine) -> None:
    alone = machine.trainer(0)
    alone.world_size = 1
    for trainer in (None, alone):
        assert load_once(examples, trainer) is not None
    assert machine.barriers == []
