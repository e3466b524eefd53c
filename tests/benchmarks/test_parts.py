"""What benchmarks are made of."""

import os
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest


def test_two_take_turns_and_each_is_first_as_often() -> None:
    from lit_fednas.benchmarks.measuring import Turns

    done: list[str] = []
    turns = Turns("cpu", lambda unit: done.append(f"plain {unit}"))
    for unit in range(4):
        turns.begin()
        done.append(f"library {unit}")
        turns.end()
    # library, plain | plain, library | library, plain | plain, library
    assert done == [
        "library 0",
        "plain 0",
        "plain 1",
        "library 1",
        "library 2",
        "plain 2",
        "plain 3",
        "library 3",
    ]
    assert len(turns.library_times) == len(turns.plain_times) == 4


def test_many_take_turns_and_none_is_favoured() -> None:
    from lit_fednas.benchmarks.measuring import in_turns

    done: list[tuple[int, str]] = []
    ended: list[int] = []
    workers = {name: lambda unit, name=name: done.append((unit, name)) for name in "abc"}
    seconds = in_turns(workers, 6, "cpu", ended.append)
    assert ended == list(range(6))
    assert {name: len(times) for name, times in seconds.items()} == {"a": 6, "b": 6, "c": 6}
    before: Counter[tuple[str, str]] = Counter()
    for unit in range(6):
        order = [name for at, name in done if at == unit]
        assert sorted(order) == ["a", "b", "c"]
        before.update((one, other) for place, one in enumerate(order) for other in order[place + 1 :])
    assert all(before[pair] == 3 for pair in permutations("abc", 2))


def test_clients_of_unequal_sizes_have_all_the_data_between_them() -> None:
    from lit_fednas.benchmarks.tasks import Setting

    setting = Setting(examples=64, clients=20, unequal=8.0, image=8)
    assert min(setting.sizes) >= 8
    assert max(setting.sizes) <= 64
    assert len(set(setting.sizes)) > 5
    assert setting.starts[-1] + setting.sizes[-1] == len(setting.data())


def test_the_plain_loop_is_federated_averaging() -> None:
    """A weighted mean of what the clients trained, where sizes differ."""
    import torch

    from lit_fednas.benchmarks.plain import PlainLoop
    from lit_fednas.benchmarks.tasks import Setting

    setting = Setting("tiny", examples=12, clients=3, cohort=3, batch_size=5, unequal=4.0, image=8)
    loop = PlainLoop(setting, setting.supernet(), setting.data())
    mean, total = [torch.zeros_like(param) for param in loop.params], sum(setting.sizes)
    for client, size in enumerate(setting.sizes):
        loop.train_client(0, client)
        for one, param in zip(mean, loop.params, strict=True):
            one += param.detach() * size / total
    loop.round(0)
    for one, weight in zip(mean, loop.weights, strict=True):
        torch.testing.assert_close(weight, one)


def test_a_child_knows_its_place_and_nothing_of_other_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    from lit_fednas.benchmarks.child import environments

    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    (alone,) = environments(1, threads=2)
    assert "LOCAL_RANK" not in alone
    assert "MASTER_PORT" not in alone
    assert alone["OMP_NUM_THREADS"] == "2"
    first, second = environments(2, threads=1)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "1"
    assert os.environ["LOCAL_RANK"] == "3"


@pytest.mark.slow  # a process that imports torch
def test_a_child_answers() -> None:
    from lit_fednas.benchmarks.child import call_in_child

    assert call_in_child("lit_fednas.benchmarks.showing:counted", {"count": 2, "what": "rank"}) == "2 ranks"


@pytest.mark.slow  # a process that imports torch
def test_one_rank_that_fails_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from lit_fednas.benchmarks.child import call_in_child

    with pytest.raises(RuntimeError, match="counted failed in a process of its own"):
        call_in_child("lit_fednas.benchmarks.showing:counted", {"count": 2}, ranks=2)
    assert "what" in capfd.readouterr().err


@pytest.mark.parametrize("loses", [2.0, 2.5])
def test_losses_that_differ_are_noticed(loses: Any) -> None:
    from lit_fednas.benchmarks.measuring import check_losses

    check_losses([2.3], [2.3], 1e-4, "same")
    with pytest.raises(AssertionError, match="other: losses"):
        check_losses([2.3], [loses], 0.01, "other")
