"""One copy of the examples for the processes of a machine."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_fednas.data import IID, ArrayFiles, DataSource, Examples, FederatedDataModule, Leaf
from lit_fednas.data.examples import compute_once, load_once
from lit_fednas.data.transforms import as_float
from lit_fednas.errors import DataError
from tests.data.files import leaf


class Machine:
    """A trainer's view of several processes, as one after the other would have it."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.barriers: list[list[str]] = []
        self.of_first: list[Any] = []

    @property
    def files(self) -> list[str]:
        """What the processes have written, and not removed."""
        return sorted(str(path) for folder in self.temporary.glob("lit-fednas-*") for path in folder.iterdir())

    def trainer(self, local_rank: int) -> Any:
        sent = iter(self.of_first)
        if local_rank == 0:
            self.of_first = []

        def share(value: Any) -> Any:
            """What the first process sends or decides, the others receive in its order."""
            if local_rank:
                return next(sent)
            self.of_first.append(value)
            return value

        strategy = SimpleNamespace(
            broadcast=share,
            reduce_boolean_decision=share,
            barrier=lambda: self.barriers.append([Path(file).name for file in self.files]),
        )
        ranks = {"global_rank": local_rank, "local_rank": local_rank, "node_rank": 0}
        return SimpleNamespace(world_size=2, **ranks, strategy=strategy)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    return Machine(tmp_path)


def examples() -> Examples:
    sites = {"site": np.array(["a", "b", "b", "ä"]), "text/kind": np.array(["x", "yy", "x", "x"], dtype=object)}
    return Examples(torch.arange(8.0).view(4, 2).T.contiguous().T, torch.tensor([3, 1, 0, 2]), sites)


def never(*settings: Any) -> Any:
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
        assert found.columns["text/kind"].tolist() == ["x", "yy", "x", "x"]
    assert machine.barriers == [["examples.pt"]] * 2
    if (maps := Path("/proc/self/maps")).exists():
        assert all(file in maps.read_text() for file in machine.files)


def test_every_process_raises_what_the_first_does(machine: Machine) -> None:
    def fail() -> Examples:
        raise DataError("data.source: is gone")

    for once in (load_once, compute_once):
        for rank in (0, 1):
            with pytest.raises(DataError, match="is gone"):
                once(fail, machine.trainer(rank))
    assert machine.files == []


def test_files_are_removed_and_what_was_mapped_stays(machine: Machine) -> None:
    found = load_once(examples, machine.trainer(0))
    assert machine.files == []
    assert found is not None
    assert found.inputs.sum() == 28
    assert [load_once(lambda: None, machine.trainer(rank)) for rank in (0, 1)] == [None, None]  # has no such split
    machine.barriers.clear()
    alone = machine.trainer(0)
    alone.world_size = 1
    for trainer in (None, alone):  # each loads for itself
        assert load_once(examples, trainer) is not None
    assert machine.barriers == []


def arrays(folder: Path) -> DataSource:
    rng = np.random.default_rng(0)
    np.savez(folder / "train.npz", inputs=rng.normal(size=(300, 3, 100)), targets=np.arange(300) % 3)
    return ArrayFiles({"train": str(folder / "train.npz")}, standardize=True)


def of_leaf(folder: Path) -> DataSource:
    return Leaf(leaf(folder, a=(np.random.default_rng(0).random((50, 784)).round(2).tolist(), list(range(50)))))


@pytest.mark.parametrize("make", [arrays, of_leaf])
def test_no_process_keeps_a_copy_of_its_own(
    make: Callable[[Path], DataSource], machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.rmtree", lambda *args, **settings: None)  # the others are still to come
    (tmp_path / "files").mkdir()
    first = make(tmp_path / "files")
    pickled = pickle.dumps(first)
    expected = pickle.loads(pickled).load("train")
    assert expected is not None
    for rank, source in enumerate([first, pickle.loads(pickled)]):
        data = FederatedDataModule(source, IID(), num_clients=2, server_val=0)
        data.trainer = machine.trainer(rank)
        gc.collect()
        tracemalloc.start()
        assert data.num_classes > 1
        if rank:
            monkeypatch.setattr(source, "load", {"val": None}.__getitem__)  # which does not exist
        data.setup("fit")
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        (inputs, _), *_ = data.clients.batches(0, 10**6, torch.Generator(), shuffle=False, augment=False)
        rows = data.clients.rows(0)
        assert torch.equal(inputs, (first.normalization or as_float)(expected.inputs[rows]))
        assert held < expected.inputs.nbytes / 3
        assert peak < expected.inputs.nbytes or rank == 0 or make is not arrays  # nor does it read those of a file
