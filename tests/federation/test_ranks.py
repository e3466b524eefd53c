"""Runs over several ranks: equal to a run on one, with evenly dealt work, and ending with any rank."""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import distributed

import lit_fednas.aggregation
from lit_fednas.cli import main
from lit_fednas.errors import ClientError, ConfigError, RankError
from lit_fednas.federation import FaultPolicy, FederatedCallback, FederatedTrainer, RankStrategy, fastest
from lit_fednas.federation.lightning_private import launched
from lit_fednas.federation.ranks import deal
from lit_fednas.objectives import CrossEntropy
from lit_fednas.records import read_rounds
from tests.federation import methods
from tests.federation.methods import COVERING, METHODS
from tests.federation.runs import LAST, run, straight
from tests.support import assert_same, ended, forked, make_module, make_trainer, waited, weights

ROOT = Path(lit_fednas.__file__).parent.parent


def address() -> dict[str, str]:
    """Returns variables with which ranks find each other if the first rank does not start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def test_the_longest_is_dealt_first_and_to_the_rank_with_the_least():
    """The loads are 7 and 5; then 4 goes to 5, 3 goes to 7, and 2 goes to 9, which is less than 10."""
    assert deal([3, 7, 4, 2, 5], 2) == [[0, 1], [2, 3, 4]]
    assert deal([1, 1, 1, 1], 3) == [[0, 3], [1], [2]]
    assert deal([1.0], 3) == [[0], [], []]


def test_ddp_means_ranks_without_a_wrapper():
    for strategy in ("ddp", "auto"):
        trainer = FederatedTrainer(1, accelerator="cpu", devices=2, strategy=strategy, logger=False)
        assert type(trainer.strategy) is RankStrategy
        assert trainer.world_size == 2
    assert isinstance(FederatedTrainer(1, accelerator="cpu", logger=False).strategy, SingleDeviceStrategy)


def test_other_strategies_are_refused():
    with pytest.raises(ConfigError, match=r"trainer.strategy: fsdp is not supported; give auto, ddp"):
        FederatedTrainer(1, accelerator="cpu", devices=2, strategy="fsdp")


# ---- one rank equals two ------------------------------------------------------------------------------


#: Methods that differ most between ranks; the first, which is also resumed, keeps client states.
QUICK = ("exits late", "counting reject", "suites")
#: All other methods except invariant units, because their choice may depend on the rounding of the ranks' statistics.
OTHERS = [name for name in COVERING if name not in QUICK and METHODS[name].assignment != "invariant"]
#: Tolerances for amplified roundings: they change a rounding to int8 (2e-5), and norms of small maps amplify them (9e-5
#: on a processor without AVX-512).
AMPLIFIED = {name: 1e-4 for name in COVERING if METHODS[name].wire == "packed"}
AMPLIFIED |= {name: 3e-4 for name in COVERING if METHODS[name].assignment in ("tracking", "sandwich")}
AMPLIFIED |= {name: 5e-3 for name in COVERING if METHODS[name].fit == "half"}


TWO = {"strategy": "ddp", "devices": 2, "threads": 1}


def on_two_ranks(folder: Path, work: Callable[[], Any]) -> list[Any]:
    """Returns the results of a function on each of two ranks."""

    def rank() -> None:
        result = work()
        torch.save(result, folder / f"rank{distributed.get_rank()}.pt")
        distributed.barrier()

    where = address()
    ranks = [forked(rank, LOCAL_RANK=str(number), **where) for number in (0, 1)]
    assert [ended(process, 600) for process in ranks] == [0, 0]
    return [torch.load(folder / f"rank{number}.pt", weights_only=False) for number in (0, 1)]


@pytest.mark.parametrize("names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=len)
def test_two_ranks_equal_one(tmp_path, names):
    """Every method: weights and metrics up to rounding, all else exactly."""
    first, second = on_two_ranks(tmp_path, lambda: {name: run(name, tmp_path / name, **TWO) for name in names})
    for name, two in first.items():
        single, other = straight(name), second[name]
        tolerance = AMPLIFIED.get(name, 2e-6)
        for key, tensor in single.weights.items():
            torch.testing.assert_close(two.weights[key], tensor, rtol=0, atol=tolerance, msg=f"{name}: {key}")
            assert torch.equal(two.weights[key], other.weights[key]), f"{name}: {key}"
        assert two.evaluated + other.evaluated == single.evaluated, name
        assert abs(two.evaluated - other.evaluated) <= single.evaluated / 3, name
        for got in (two, other):
            # every rank's callbacks hear of every client, once
            assert got.reported_clients == single.reported_clients, name
            # numbers that an assignment derives from losses are equal up to rounding
            torch.testing.assert_close(got.assignment, single.assignment, rtol=0, atol=100 * tolerance, msg=name)
            assert got.assignment == two.assignment, name
            assert got.statuses == single.statuses, name
            roundings = pytest.approx(single.metrics, rel=10 * tolerance, abs=10 * tolerance, nan_ok=True)
            assert got.metrics == roundings, name
            assert repr(got.metrics) == repr(two.metrics), name


def test_a_run_on_two_ranks_resumes_exactly(tmp_path):
    def stopped_and_straight() -> list[dict[str, torch.Tensor]]:
        run("exits late", tmp_path / "stopped", rounds=1, **TWO)
        resumed = run("exits late", tmp_path / "stopped", ckpt_path=tmp_path / "stopped" / LAST, **TWO)
        return [resumed.weights, run("exits late", tmp_path / "straight", **TWO).weights]

    for resumed, through in on_two_ranks(tmp_path, stopped_and_straight):
        assert_same(resumed, through)


class Broken(CrossEntropy):
    """Fails on the second rank alone."""

    def loss(self, network, inputs, targets):
        if distributed.get_rank() == 1:
            raise ArithmeticError("seven apples")
        return super().loss(network, inputs, targets)


class BrokenCallback(FederatedCallback):
    """Fails on the second rank alone, in its share of the cohort."""

    def on_client_end(self, trainer, module, result, update):
        if trainer.global_rank == 1:
            raise ArithmeticError("eight apples")


def fit_fast(fast=None, callbacks=(), **settings):
    """Trains a round on two ranks; returns the choice of ``client.fast`` and the weights."""
    module = make_module(**settings)
    module.client = module.client.with_changes(fast=fast)
    trainer = make_trainer(1, callbacks=list(callbacks), **TWO)
    trainer.fit(module, datamodule=methods.image_data())
    return trainer.fit_loop.fastest, weights(module)


def error(**settings: Any) -> str:
    with pytest.raises((RuntimeError, ArithmeticError)) as raised:
        fit_fast(faults=FaultPolicy(on_client_error="raise"), **settings)
    return f"{type(raised.value).__name__}: {raised.value}"


def test_an_error_on_one_rank_is_reported_by_all(tmp_path, monkeypatch):
    """Errors of a client, in training and measuring, and of a callback; and the choice by measured times."""
    monkeypatch.setattr(fastest, "_TURN", 0.01)
    monkeypatch.setattr(fastest, "_TURNS", (1, 1))

    def errors_and_choice() -> tuple[list[str], Any]:
        errors = [error(objective=Broken(), fast=fast) for fast in (None, "auto")]
        return [*errors, error(callbacks=[BrokenCallback()])], fit_fast("auto")

    (first, choice), (second, same_choice) = on_two_ranks(tmp_path, errors_and_choice)
    assert first[:2] == second[:2]
    for text in first[:2]:
        assert text.startswith("ClientError: round 1, client ")
        assert "ArithmeticError: seven apples (test_ranks.py, line " in text
    assert first[2].startswith("RankError: rank 1: ArithmeticError: eight apples (test_ranks.py, line ")
    assert second[2] == "ArithmeticError: eight apples"
    assert choice[0] == same_choice[0]  # each has measured
    assert choice[0]["round"] == 0
    assert_same(choice[1], same_choice[1])


DIGITS = (
    *("fit", "--config", str(ROOT / "configs/superfed/digits.yaml"), "--trainer.accelerator", "cpu"),
    *("--model.client.steps", "1", "--trainer.logger.init_args.save_dir"),
)


@pytest.mark.slow
def test_two_nodes_are_two_ranks(tmp_path):
    where, nodes = address(), ("--trainer.max_rounds", "2", "--trainer.num_nodes", "2", "--trainer.devices", "1")
    words = [*DIGITS, str(tmp_path), *nodes]
    runs = [forked(lambda: sys.exit(main(words)), **where, NODE_RANK=str(node)) for node in (0, 1)]
    assert [ended(process) for process in runs] == [0, 0]
    (records,) = tmp_path.rglob("rounds.jsonl")
    assert [len(record["clients"]) for record in read_rounds(records.parent)] == [4, 4]


@pytest.mark.slow
def test_ranks_in_a_notebook_return_their_weights():
    def notebook() -> None:
        module = METHODS["exits away"]()
        callbacks = methods.callbacks("exits away")
        trainer = make_trainer(methods.ROUNDS, strategy="ddp_notebook", devices=2, threads=1, callbacks=callbacks)
        trainer.fit(module, datamodule=methods.data("exits away"))
        assert_same(weights(module), straight("exits away").weights, rtol=0, atol=2e-6)

    assert ended(forked(notebook)) == 0


def test_a_lost_rank_is_reported():
    """Searches report it too; other errors are raised unchanged."""
    strategy = SimpleNamespace(setup_environment=lambda: None, launcher=None)
    trainer = SimpleNamespace(strategy=strategy, world_size=2)
    device = ClientError("client 3: Connection refused")
    for error, raised in (
        (RuntimeError("Connection closed by peer"), RankError),
        (RuntimeError("out of memory"), RuntimeError),
        (device, ClientError),
    ):
        with pytest.raises(RuntimeError, match=str(error)) as caught:
            launched(trainer, Mock(side_effect=error))
        assert type(caught.value) is raised


# ---- ranks that die -----------------------------------------------------------------------------------


def digits_run(folder: Path, *launcher: str) -> tuple[BaseProcess, int]:
    """Starts two ranks of ``python -m lit_fednas``; returns the process that starts others, and their output pipe.

    This process is the first rank, unless ``launcher``, a module with options, starts both ranks.
    """
    reading, writing = os.pipe()

    def program() -> None:
        os.dup2(writing, 2)
        os.close(writing)
        os.chdir(ROOT)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        words = ["lit_fednas", *DIGITS, str(folder), "--trainer.max_rounds", "100000", "--trainer.devices", "2"]
        sys.argv = [*launcher, "-m", *words] if launcher else words
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

    process = forked(program, OMP_NUM_THREADS="1")
    os.close(writing)
    return process, reading


def rest(reading: int) -> str:
    """Returns the output until all processes have closed the pipe."""
    parts = []
    while select.select([reading], [], [], 300)[0] and (part := os.read(reading, 2**16)):
        parts.append(part)
    os.close(reading)
    return b"".join(parts).decode()


def child_of(process: BaseProcess) -> int:
    """Waits for a child of a process and returns its number."""
    while not (output := subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout):
        assert process.is_alive()
        time.sleep(0.05)
    return int(output.split()[0])


def wait_for_rounds(folder: Path, count: int) -> Path:
    waited(lambda: [*folder.rglob("rounds.jsonl")])
    (records,) = folder.rglob("rounds.jsonl")
    waited(lambda: len(records.read_text().splitlines()) >= count)
    return records


TORCHRUN = ("torch.distributed.run", "--nproc_per_node", "2", "--master_port", address()["MASTER_PORT"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "signum", "is_first", "status", "message"),
    [
        # Lightning kills the remaining rank, which may end earlier by itself
        ((), signal.SIGKILL, False, (1, -signal.SIGKILL), ""),
        ((), signal.SIGKILL, True, (-signal.SIGKILL,), "lit-fednas (rank 1): lost the connection to another rank"),
        ((), signal.SIGTERM, True, (128 + signal.SIGTERM,), "stopped by SIGTERM; continue with --ckpt_path /"),
        (TORCHRUN, signal.SIGKILL, False, (1,), "exitcode  : -9"),
    ],
)
def test_a_rank_that_is_stopped_ends_the_run(tmp_path, launcher, signum, is_first, status, message):
    """All ranks end, at Lightning's next check at the latest, and the checkpoint is complete."""
    first, errors = digits_run(tmp_path, *launcher)
    records = wait_for_rounds(tmp_path, 2)
    os.kill(first.pid if is_first else child_of(first), signum)
    output = rest(errors)
    assert ended(first) in status, output
    assert message in output
    last = torch.load(records.parent / "checkpoints" / "last.ckpt", weights_only=True)
    done = [record["round"] for record in read_rounds(records.parent)]
    assert last["global_step"] in ((len(done),) if signum == signal.SIGTERM else (len(done) - 1, len(done)))
    assert done == list(range(len(done)))
