"""A run over several ranks: equal to a run on one, its work dealt evenly, and no rank dies in silence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

import lit_fednas.aggregation
from lit_fednas.aggregation import Aggregation
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedTrainer, RankStrategy
from lit_fednas.federation.ranks import deal
from lit_fednas.records import read_rounds
from tests.federation import methods
from tests.federation.methods import COVERING, METHODS
from tests.federation.runs import straight
from tests.support import assert_same, concrete_classes

ROOT = Path(lit_fednas.__file__).parent.parent


def start(*words: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def address() -> dict[str, str]:
    """Where ranks that are not started by the first find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def test_the_longest_is_dealt_first_and_to_the_rank_with_the_least():
    """7, then 5 to the other, 4 to the one with 5, 3 to the one with 7, 2 to either (9 against 10)."""
    assert deal([3, 7, 4, 2, 5], 2) == [[0, 1], [2, 3, 4]]
    assert deal([1, 1, 1, 1], 3) == [[0, 3], [1], [2]]
    assert deal([1.0], 3) == [[0], [], []]


def test_ddp_means_ranks_without_a_wrapper():
    for strategy in ("ddp", "auto"):
        trainer = FederatedTrainer(1, accelerator="cpu", devices=2, strategy=strategy, logger=False)
        assert type(trainer.strategy) is RankStrategy
        assert trainer.world_size == trainer.ranks_here == 2
    assert isinstance(FederatedTrainer(1, accelerator="cpu", logger=False).strategy, SingleDeviceStrategy)


def test_other_strategies_are_refused():
    with pytest.raises(ConfigError, match=r"trainer.strategy: fsdp is not supported; give auto, ddp"):
        FederatedTrainer(1, accelerator="cpu", devices=2, strategy="fsdp")


# ---- one rank equals two ------------------------------------------------------------------------------


#: What differs between ranks in a way of its own; the run that is stopped is the first, which keeps states of clients.
QUICK = ("exits late", "counting scale", "suites")
#: But for invariant units: which are kept may hang on the rounding of what several ranks report.
OTHERS = [name for name in COVERING if name not in QUICK and METHODS[name].assignment != "invariant"]
#: How far roundings carry: they turn over one of int8 on the way (2e-5), and norms of small maps amplify them (9e-5 on
#: a processor with AVX2 alone).
AMPLIFIED = {name: 1e-4 for name in COVERING if METHODS[name].wire == "packed"}
AMPLIFIED |= {name: 3e-4 for name in COVERING if METHODS[name].assignment in ("tracking", "sandwich")}
AMPLIFIED |= {name: 5e-3 for name in COVERING if METHODS[name].fit == "half"}


def test_two_ranks_run_every_aggregation():
    tried = {METHODS[name].average for name in (*QUICK, *OTHERS)}
    assert not concrete_classes(Aggregation, lit_fednas.aggregation) - {methods.AGGREGATIONS[name] for name in tried}


@pytest.mark.parametrize("names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=len)
def test_two_ranks_equal_one(tmp_path, names):
    """Every method: weights and metrics up to rounding, all else exactly; a stopped run goes on to the bit."""
    program = start("tests.federation.two_ranks", str(tmp_path), *names, **address())
    _, errors = program.communicate(timeout=600)
    assert program.returncode == 0, errors
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in (0, 1))
    told, own = first.pop("errors"), second.pop("errors")
    for one in (0, 2):  # in training, in measuring
        assert told[one] == own[one]
        assert told[one].startswith("ClientError: round 0, client ")
        assert "ArithmeticError: seven apples (two_ranks.py, line " in told[one]
    assert told[1].startswith("RankError: rank 1: ArithmeticError: eight apples (two_ranks.py, line ")
    assert own[1] == "own: eight apples"
    (choice, trained), (same_choice, same) = first.pop("chosen"), second.pop("chosen")
    assert choice == same_choice  # each has measured
    assert choice["round"] == 0
    assert_same(trained, same)
    resumed = first.pop("resumed"), second.pop("resumed")
    assert list(first) == list(second) == list(names)
    for name, two in first.items():
        one, other = straight(name), second[name]
        tolerance = AMPLIFIED.get(name, 2e-6)
        for key, tensor in one.weights.items():
            torch.testing.assert_close(two.weights[key], tensor, rtol=0, atol=tolerance, msg=f"{name}: {key}")
            assert torch.equal(two.weights[key], other.weights[key]), f"{name}: {key}"
        assert two.evaluated + other.evaluated == one.evaluated, name
        assert abs(two.evaluated - other.evaluated) <= one.evaluated / 3, name
        for got in (two, other):
            assert got.told == one.told, name  # every rank's callbacks hear of every client, once
            # what an assignment makes of losses is a number that several ranks have up to rounding
            torch.testing.assert_close(got.assignment, one.assignment, rtol=0, atol=100 * tolerance, msg=name)
            assert got.assignment == two.assignment, name
            assert got.statuses == one.statuses, name
            roundings = pytest.approx(one.metrics, rel=10 * tolerance, abs=10 * tolerance, nan_ok=True)
            assert got.metrics == roundings, name
            assert repr(got.metrics) == repr(two.metrics), name
    for again, straight_on in zip(resumed, (first, second), strict=True):
        assert_same(again.weights, straight_on[names[0]].weights)


DIGITS = (
    *("lit_fednas", "fit", "--config", "configs/superfed/digits.yaml", "--trainer.accelerator", "cpu"),
    "--trainer.logger.init_args.save_dir",
)


@pytest.mark.slow
def test_two_nodes_are_two_ranks(tmp_path):
    """One process on each of two "nodes", that find each other by the address of the first."""
    at, nodes = address(), ("--trainer.max_rounds", "2", "--trainer.num_nodes", "2", "--trainer.devices", "1")
    runs = [start(*DIGITS, str(tmp_path), *nodes, **at, NODE_RANK=str(node)) for node in (0, 1)]
    for run in runs:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    (records,) = tmp_path.rglob("rounds.jsonl")
    assert [len(record["clients"]) for record in read_rounds(records.parent)] == [4, 4]


FORK = """
from tests.federation import methods
from tests.support import assert_same, make_trainer, weights

def train(**settings):
    module = methods.METHODS["exits away"]()
    make_trainer(2, **settings).fit(module, datamodule=methods.data("exits away"))
    return weights(module)

forked = train(strategy="ddp_notebook", devices=2, threads=1)
assert_same(forked, train(), rtol=0, atol=2e-6)
"""


@pytest.mark.slow
def test_ranks_in_a_notebook_hand_their_weights_back():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, timeout=120, check=True)


# ---- ranks that die -----------------------------------------------------------------------------------


def digits_run(folder: Path) -> subprocess.Popen:
    return start(*DIGITS, str(folder), "--trainer.max_rounds", "100000", "--trainer.devices", "2")


def wait_for_rounds(folder: Path, count: int) -> Path:
    for _ in range(600):
        found = [path for path in folder.rglob("rounds.jsonl") if len(path.read_text().splitlines()) >= count]
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError("no rounds in a minute")


@pytest.mark.slow
def test_a_rank_does_not_wait_for_one_that_is_gone(tmp_path):
    """Rank 0 is killed while rank 1 still imports, long before both form a group."""
    main = digits_run(tmp_path)
    while not subprocess.run(["pgrep", "-P", str(main.pid)], capture_output=True).stdout:
        assert main.poll() is None
        time.sleep(0.05)
    main.kill()
    _, errors = main.communicate(timeout=120)  # until rank 1 has closed it, too
    assert "rank 0 has ended; its own message, or who has killed it, says why; this process has been" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "victim", "status", "message"),
    [
        (signal.SIGKILL, 1, 1, "lit-fednas: rank 1 was killed by SIGKILL"),
        (signal.SIGTERM, 0, 128 + signal.SIGTERM, "lit-fednas: stopped by SIGTERM; go on with --ckpt_path last"),
    ],
)
def test_a_rank_that_is_stopped_ends_the_run_with_its_reason(tmp_path, signum, victim, status, message):
    main = digits_run(tmp_path)
    records = wait_for_rounds(tmp_path, 2)
    child = int(subprocess.run(["pgrep", "-P", str(main.pid)], capture_output=True, text=True).stdout.split()[0])
    os.kill(child if victim else main.pid, signum)
    _, errors = main.communicate(timeout=60)  # until the other rank has closed it, too
    assert main.returncode == status, errors
    assert message in errors
    last = torch.load(records.parent / "checkpoints" / "last.ckpt", weights_only=True)
    done = [record["round"] for record in read_rounds(records.parent)]
    assert last["global_step"] in ((len(done),) if signum == signal.SIGTERM else (len(done) - 1, len(done)))
    assert done == list(range(len(done)))
