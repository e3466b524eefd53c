"""Run, stop, resume = run straight through, exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.aggregation import MaxNet, OverlapAverage
from lit_fednas.assignment import RandomArchitectures, TrackingSandwich
from lit_fednas.callbacks import BetaDecay, CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedCallback, FedYogi, UniformCohort
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.records import read_rounds
from lit_fednas.supernets import ElasticResNet, NoNorm
from tests.support import (
    assert_same,
    make_module,
    make_trainer,
    run_record,
    tiny_data,
    tiny_supernet,
    weights,
)

ROUNDS = 5


def superfed(**settings):
    settings = {
        "assignment": TrackingSandwich(),
        "aggregation": MaxNet(),
        "cohort": UniformCohort(count=4),
        **settings,
    }
    return make_module(server_optimizer=lambda params: FedYogi(params, lr=0.1), **settings)


def run(folder: Path, *extra, ckpt_path=None, every_n_rounds=1, **settings):
    trainer = make_trainer(
        ROUNDS,
        check_val_every_n_rounds=2,
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[
            BetaDecay(),
            CostLedger(["smallest", "largest"]),
            RunRecorder(),
            RoundCheckpoint(monitor="val/largest/accuracy", every_n_rounds=every_n_rounds),
            *extra,
        ],
    )
    trainer.fit(superfed(**settings), datamodule=tiny_data(), ckpt_path=ckpt_path)
    return folder / "run" / "only"


class StopAt(FederatedCallback):
    """Stops the run as a signal or an error would, in the round's n-th client."""

    def __init__(self, round: int, client: int, how: str) -> None:
        self.at = round, client
        self.how = how

    def on_cohort_start(self, trainer, module, round):
        self.count = 0

    def on_client_end(self, trainer, module, result, update):
        self.count += 1
        if (result.task.round, self.count) == self.at:
            if self.how == "error":
                raise RuntimeError("out of the blue")
            os.kill(os.getpid(), getattr(signal, self.how))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run straight through. Read only."""
    return run(tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def straight(finished):
    return run_record(finished)


@pytest.mark.parametrize(
    ("how", "raised", "round", "client"),
    [("SIGINT", Interrupted, 2, 1), ("SIGTERM", Interrupted, 3, 3), ("error", RuntimeError, 3, 2)],
)
def test_a_stopped_run_resumes_exactly(tmp_path, straight, how, raised, round, client):
    with pytest.raises(raised):
        run(tmp_path, StopAt(round, client, how))
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    saved = torch.load(last, weights_only=True)
    assert saved["global_step"] == round  # what was trained is kept, and the unfinished round is not in it
    assert run_record(run(tmp_path, ckpt_path=str(last))) == straight


def test_a_stop_saves_between_the_regular_checkpoints(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(3, 2, "SIGTERM"), every_n_rounds=100)
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    resumed = run_record(run(tmp_path, ckpt_path=str(last), every_n_rounds=100))
    assert resumed == run_record(run(tmp_path / "straight", every_n_rounds=100))


def test_a_signal_in_a_rounds_last_client_lets_the_round_end(tmp_path, straight):
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(2, 4, "SIGTERM"))
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    assert run_record(run(tmp_path, ckpt_path=str(last))) == straight


def test_a_second_resume_is_exact_too(tmp_path, straight):
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(1, 2, "SIGTERM"))
    last = str(tmp_path / "run" / "only" / "checkpoints" / "last.ckpt")
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(3, 1, "SIGINT"), ckpt_path=last)
    torch.manual_seed(1234)  # neither the process's state nor the initial weights matter
    torch.rand(17)
    assert run_record(run(tmp_path, ckpt_path=last, supernet=tiny_supernet(seed=9))) == straight


def test_a_kill_in_mid_round_loses_that_round_only(tmp_path, straight):
    """SIGKILL cannot be caught: a process of its own is killed while a client trains."""
    root = Path(__file__).parents[2]
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from lit_fednas.federation import FederatedCallback\n"
        "from tests.federation.test_resume import run\n"
        "class Pause(FederatedCallback):\n"
        "    def on_client_end(self, trainer, module, result, update):\n"
        "        if result.task.round == 3:\n"
        "            Path(sys.argv[3]).touch(); time.sleep(60)\n"
        "run(Path(sys.argv[1]), Pause())\n"
    )
    flag = tmp_path / "flag"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(root), str(flag)])
    deadline = time.monotonic() + 120
    while not flag.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    assert run_record(run(tmp_path, ckpt_path=str(last))) == straight


@pytest.mark.parametrize(
    "when", [{"save_on_train_epoch_end": True}, {"save_on_train_epoch_end": False}, {"every_n_train_steps": 1}]
)
def test_lightnings_own_checkpoints_resume_exactly(tmp_path, when):
    """Lightning's ModelCheckpoint may save between the server's step and the round's end."""

    def weights_after(rounds, ckpt_path=None, callbacks=()):
        cohorts = []

        class Cohorts(FederatedCallback):
            def on_cohort_start(self, trainer, module, round):
                cohorts.append([task.client for task in round.tasks])

        module = superfed(aggregation=OverlapAverage())
        trainer = make_trainer(
            rounds,
            enable_checkpointing=True,
            default_root_dir=str(tmp_path),
            logger=RunLogger(str(tmp_path), "run", "only"),
            callbacks=[Cohorts(), RunRecorder(), *callbacks],
        )
        trainer.fit(module, datamodule=tiny_data(), ckpt_path=ckpt_path)
        records = [record["round"] for record in read_rounds(tmp_path / "run" / "only")]
        return weights(module), cohorts, records

    straight, cohorts, _ = weights_after(4)
    saving = ModelCheckpoint(dirpath=tmp_path, filename="x", enable_version_counter=False, **when)
    weights_after(2, callbacks=[saving])
    resumed, rest, records = weights_after(4, ckpt_path=str(tmp_path / "x.ckpt"))
    assert rest == cohorts[2:]
    assert records == [0, 1, 2, 3]
    assert_same(straight, resumed)


def test_the_best_checkpoint_is_kept(finished):
    best = list((finished / "checkpoints").glob("round=*.ckpt"))
    assert len(best) == 1


def test_a_checkpoint_of_another_supernet_is_refused(tmp_path, finished):
    last = str(finished / "checkpoints" / "last.ckpt")
    wider = ElasticResNet(
        (1, 8, 8), 4, stem_width=4, stage_widths=[8, 32], depths=[0, 1], ratios=[0.25, 0.5], divisor=2
    )
    with pytest.raises(CheckpointError, match=r"differs in \d+ tensors, first in network"):
        run(tmp_path / "other", ckpt_path=last, supernet=wider)
    bare = ElasticResNet((1, 8, 8), 4, 4, [8, 16], depths=[0, 1], ratios=[0.25, 0.5], norm=NoNorm(), divisor=2)
    with pytest.raises(CheckpointError, match=r"has layers of .*BatchNorm2d.*, this one of .*Identity"):
        run(tmp_path / "other", ckpt_path=last, supernet=bare)


def test_a_checkpoint_of_another_seed_or_assignment_is_refused(tmp_path, finished):
    last = str(finished / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match="seed_everything: 1 is not that of the checkpoint's run, 0"):
        run(tmp_path / "other", ckpt_path=last, seed=1)
    with pytest.raises(CheckpointError, match="holds largest_seen, smallest_seen, and RandomArchitectures keeps none"):
        run(tmp_path / "third", ckpt_path=last, assignment=RandomArchitectures())


@pytest.mark.parametrize("damage", ["missing", "cut", "nonsense"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, finished, damage):
    path = tmp_path / "last.ckpt"
    if damage == "cut":
        path.write_bytes((finished / "checkpoints" / "last.ckpt").read_bytes()[:2000])
    elif damage == "nonsense":
        path.write_text("not a checkpoint")
    expected = "does not exist" if damage == "missing" else "cannot be read"
    with pytest.raises(CheckpointError, match=expected):
        run(tmp_path / "other", ckpt_path=str(path))


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path, finished, monkeypatch):
    path = tmp_path / "last.ckpt"
    before = (finished / "checkpoints" / "last.ckpt").read_bytes()
    path.write_bytes(before)

    def killed(*args, **kwargs):
        args[1].write(b"half of it")
        raise KeyboardInterrupt

    from lit_fednas.federation.lightning_private import AtomicCheckpointIO

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({}, path)
    assert path.read_bytes() == before


def test_a_checkpoint_is_replaced_in_one_step(tmp_path):
    """The new file is moved over the old one, never written into it."""
    from lit_fednas.federation.lightning_private import AtomicCheckpointIO

    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": 1}, path)
    first = path.stat().st_ino
    AtomicCheckpointIO().save_checkpoint({"a": 2}, path)
    assert path.stat().st_ino != first
    assert torch.load(path, weights_only=True) == {"a": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
