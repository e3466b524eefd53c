"""Tests the records of rounds."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from lit_fednas.callbacks import RunRecorder
from lit_fednas.errors import ConfigError
from lit_fednas.federation import UniformCohort
from lit_fednas.objectives import CrossEntropy
from lit_fednas.records import read_rounds
from lit_fednas.records.run import ROUNDS_FILE, append_round
from tests.federation.runs import Results
from tests.support import Noted, fit, linear_net, make_module, make_trainer, tiny_data


def run(folder, module=None, rounds=3, callbacks=(), **settings):
    fit(
        module or make_module(linear_net()),
        tiny_data(),
        rounds,
        callbacks=[RunRecorder(), *callbacks],
        default_root_dir=str(folder),
        **settings,
    )
    return list(read_rounds(folder))


def test_one_record_per_round_with_its_clients(tmp_path):
    seen, module = Results(), make_module(linear_net())
    records = run(tmp_path, module, rounds=4, callbacks=[seen])
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    clients = [client for record in records for client in record["clients"]]
    assert len(clients) == len(seen.all) == 12
    for client, result in zip(clients, seen.all, strict=True):
        assert client == {
            "client": result.task.client,
            "arch": "whole",
            "status": "ok",
            "reason": "",
            "num_examples": 20,
            "num_seen": 20,
            "num_units": 20,
            "num_steps": 3,
            "loss": result.loss,
            "macs": 20 * 256,
            "bytes_down": 1040,
            "bytes_up": 1040,
            "seconds": round(result.seconds, 4),
        }
    assert records[-1]["weights"] == module.supernet.digest()
    for record in records:
        losses = [client["loss"] for client in record["clients"]]  # all clients have equally many examples
        assert record["metrics"]["clients/loss"] == pytest.approx(sum(losses) / 3)


class Troubled(CrossEntropy):
    """In round 1 all clients fail; in every round client 0 raises an error and client 1 has a loss of NaN."""

    def begin(self, network, task, generator):
        self.task = task

    def loss(self, network, inputs, targets):
        if self.task.client == 0 or self.task.round == 1:
            raise RuntimeError("the disk is full")
        return super().loss(network, inputs, targets) * (math.nan if self.task.client == 1 else 1)


def test_failures_have_a_reason_and_no_loss(tmp_path):
    module = make_module(linear_net(), objective=Troubled(), cohort=UniformCohort(count=6))
    first, second, third = run(tmp_path, module)
    assert [client["status"] for client in first["clients"]] == ["error", "non-finite", "ok", "ok", "ok", "ok"]
    reason, location = first["clients"][0]["reason"].split(" (")
    assert reason == "RuntimeError: the disk is full"
    assert location.startswith("test_run_recorder.py, line ")
    assert location.endswith(", in Troubled.loss)")
    for client in first["clients"]:
        failed = client["status"] != "ok"
        assert (client["loss"] is None) == failed
        assert (client["bytes_up"] == 0) == failed
        assert (client["num_seen"], client["num_steps"]) == ((0, 0) if failed else (20, 3))
    assert (first["metrics"]["clients/used"], first["metrics"]["clients/failed"]) == (4, 2)
    assert ["clients/loss" in record["metrics"] for record in (first, second, third)] == [True, False, True]


def test_a_new_run_in_a_folder_replaces_the_file(tmp_path):
    append_round(tmp_path, {"round": 0, "metrics": {"old": 1.0}, "clients": []})
    with open(tmp_path / ROUNDS_FILE, "a") as file:
        file.write('{"round":1,"metr')
    records = run(tmp_path, rounds=2)
    assert [record["round"] for record in records] == [0, 1]
    assert "old" not in records[0]["metrics"]


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    """Another process locks the folder only while it trains."""
    hold = (
        "import sys; from pathlib import Path; from lit_fednas.records.files import FolderLock\n"
        f"FolderLock(Path({str(tmp_path)!r})); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"another process writes into {tmp_path}"):
            run(tmp_path)
        with pytest.raises(ConfigError, match="another process writes into"):  # rows of both runs would mix
            make_trainer(callbacks=[RunRecorder()], default_root_dir=str(tmp_path)).test(make_module(), tiny_data())
        assert not list(tmp_path.iterdir())
        other.kill()
    assert len(run(tmp_path)) == 3
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, callbacks=[Noted("on_train_epoch_end", lambda *arguments: 1 / 0)])
    assert len(run(tmp_path)) == 3  # the lock is released in this process, too
