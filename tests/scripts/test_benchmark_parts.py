"""Turns, child processes, checks and slopes of the benchmarks."""

import os
from collections import Counter
from itertools import combinations, permutations

import pytest
import torch

from benchmarks import evaluations
from benchmarks.child import call_in_child, environments
from benchmarks.measuring import Turns, check_losses
from benchmarks.plain import PlainLoop
from benchmarks.population import slope
from benchmarks.tasks import Setting


def test_workers_take_turns_and_none_is_favoured() -> None:
    """One of them runs in the caller."""
    done: list[tuple[int, str]] = []
    finished_units: list[int] = []
    inside = {name: lambda unit, name=name: done.append((unit, name)) for name in "bc"}
    turns = Turns({"a": None, **inside}, 6, "cpu", finished_units.append)
    turns.advance()
    for unit in range(6):
        done.append((unit, "a"))
        turns.advance()
    assert finished_units == list(range(6))
    assert {name: len(times) for name, times in turns.times.items()} == {"a": 6, "b": 6, "c": 6}
    precedences: Counter[tuple[str, str]] = Counter()
    for unit in range(6):
        order = [name for number, name in done if number == unit]
        assert sorted(order) == ["a", "b", "c"]
        precedences.update(combinations(order, 2))
    assert all(precedences[pair] == 3 for pair in permutations("abc", 2))


def test_the_plain_loop_is_federated_averaging() -> None:
    """The mean is weighted by the clients' sizes."""
    setting = Setting("tiny", examples=12, clients=3, cohort=3, batch_size=5, unequal=4.0, image=8)
    loop = PlainLoop(setting, setting.supernet(), setting.data())
    mean, total = [torch.zeros_like(param) for param in loop.params], sum(setting.sizes)
    for client, size in enumerate(setting.sizes):
        loop.train_client(0, client)
        for average, param in zip(mean, loop.params, strict=True):
            average += param.detach() * size / total
    loop.round(0)
    for average, weight in zip(mean, loop.weights, strict=True):
        torch.testing.assert_close(weight, average)


def test_a_child_has_its_rank_and_no_variables_of_other_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_RANK", "3"), ("MASTER_PORT", "1"), ("OMP_NUM_THREADS", "7")):
        monkeypatch.setenv(name, value)
    (alone,) = environments(1, threads=2)
    assert not {"LOCAL_RANK", "MASTER_PORT"} & alone.keys()
    assert alone["OMP_NUM_THREADS"] == "2"
    first, second = environments(2, threads=1)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "1"
    assert os.environ["LOCAL_RANK"] == "3"


@pytest.mark.slow  # processes that import torch
def test_a_child_answers_and_one_rank_that_fails_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    function = "benchmarks.measuring:counted"
    assert call_in_child(function, {"count": 2, "noun": "rank"}) == "2 ranks"
    with pytest.raises(RuntimeError, match="counted failed in a child process"):
        call_in_child(function, {"count": 2}, ranks=2)
    assert "noun" in capfd.readouterr().err


def test_losses_and_generations_that_differ_are_noticed() -> None:
    check_losses([2.3], [2.3], 1e-4, "same")
    for loss in (2.0, 2.5):
        with pytest.raises(AssertionError, match="other: losses"):
            check_losses([2.3], [loss], 0.01, "other")
    row = {"arch": "a", "macs": 2, "accuracy": 0.5, "seconds": 1.0}
    same = {way: [dict(row), {**row, "arch": "b", "macs": 3, "accuracy": 0.7}] for way in evaluations.GENERATIONS}
    evaluations.check_generations(same, 100)
    for way, changed in (("processes", {"accuracy": 0.6}), ("after", {"accuracy": 0.8})):
        with pytest.raises(AssertionError, match=way):
            evaluations.check_generations({**same, way: [same[way][0], {**same[way][1], **changed}]}, 100)


def test_slopes_by_hand() -> None:
    populations = [{"clients": clients, "x": 0.5 * clients**0.7, "y": 3.0} for clients in (1e3, 1e4, 1e6)]
    assert (slope(populations, "x"), slope(populations, "y")) == pytest.approx((0.7, 0))
