"""Simulated time of rounds, recomputed from the records of real runs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from lit_fednas.assignment import ByTier
from lit_fednas.callbacks import RoundCheckpoint, RoundTime, RunRecorder
from lit_fednas.costs import DeviceProfile
from lit_fednas.data import Dirichlet
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import FaultPolicy, RoundResult, UniformCohort
from lit_fednas.records import read_rounds
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, CSVTrace, DeviceSpeeds, SyntheticTrace
from tests.support import linear_net, make_module, make_trainer, tiny_data, tiny_supernet

ROUNDS = 4
SPEEDS = DeviceSpeeds(SyntheticTrace(1e5, 20), SyntheticTrace(0.02, 5))  # computing and sending both matter


def module(**settings):
    tiers = ClientTiers(ArchitectureTiers({"slow": "smallest", "fast": "largest"}))
    settings = {"assignment": ByTier(), "cohort": UniformCohort(count=4), "tiers": tiers, **settings}
    return make_module(tiny_supernet(), **settings)


def run(folder, callback, rounds=ROUNDS, ckpt_path=None, **settings):
    made = module(**settings)
    trainer = make_trainer(
        rounds,
        enable_checkpointing=True,
        callbacks=[callback, RunRecorder(), RoundCheckpoint(dirpath=str(folder))],
        default_root_dir=str(folder),
    )
    trainer.fit(made, datamodule=tiny_data(8, partitioner=Dirichlet(1.0, min_size=4)), ckpt_path=ckpt_path)
    return made, list(read_rounds(folder))


def seconds_of(record, speeds, made):
    """Of each client of a round, by the formula of a device."""
    found = []
    for client in record["clients"]:
        speed = speeds.of(client["client"], made.population, made.seed)
        device = DeviceProfile("any", 1, speed.macs_per_second, speed.bandwidth_mbps)
        found.append(device.round_seconds(client["macs"], client["bytes_down"], client["bytes_up"]))
    return found


@pytest.mark.parametrize("speeds", [SPEEDS, DeviceSpeeds(bandwidth=SPEEDS.bandwidth, latency_ms=500.0)])
def test_by_hand(tmp_path, speeds, caplog):
    callback = RoundTime(speeds)
    with caplog.at_level(logging.INFO, logger="lit_fednas"):
        made, records = run(tmp_path, callback, faults=FaultPolicy(dropout_rate=0.3))
    statuses = [client["status"] for record in records for client in record["clients"]]
    assert set(statuses) == {"ok", "dropped"}  # who went away has its download in the records
    total, every = 0.0, []
    for record in records:
        seconds = seconds_of(record, speeds, made)
        every += seconds
        total += max(seconds)
        found = {name: record["metrics"][f"time/{name}"] for name in ("round", "mean", "std", "total")}
        wanted = {"round": max(seconds), "mean": np.mean(seconds), "std": np.std(seconds), "total": total}
        assert found == pytest.approx(wanted, rel=1e-5)
    assert callback.times.mean == pytest.approx(np.mean(every))
    assert callback.times.deviation == pytest.approx(np.std(every))
    assert callback.times.parts == len(every) == 4 * ROUNDS
    (said,) = [text for text in caplog.messages if text.startswith("simulated time")]
    assert f"{np.mean(every):.4g} s on average, standard deviation {np.std(every):.4g} s (16 parts)" in said
    assert f"the rounds took {total:.4g} s" in said


def test_a_slow_tier_makes_its_clients_wait_no_longer(tmp_path):
    """With speeds of tiers and models of tiers, an example takes the same time on all devices."""
    made, records = run(tmp_path, RoundTime(DeviceSpeeds(latency_ms=20)))
    for client in (client for record in records for client in record["clients"]):
        speed = DeviceSpeeds(latency_ms=20).of(client["client"], made.population, made.seed)
        assert client["macs"] / client["num_seen"] / speed.macs_per_second == pytest.approx(0.02)


def test_a_resumed_run_goes_on(tmp_path):
    straight, whole = RoundTime(SPEEDS), run(tmp_path / "straight", RoundTime(SPEEDS))[1]
    run(tmp_path / "again", straight)
    run(tmp_path / "parts", RoundTime(SPEEDS), rounds=2)
    resumed = RoundTime(SPEEDS)
    _, records = run(tmp_path / "parts", resumed, ckpt_path=str(tmp_path / "parts" / "last.ckpt"))
    assert resumed.times == straight.times
    assert [record["metrics"] for record in records] == [record["metrics"] for record in whole]
    _, second = run(tmp_path / "second", resumed)  # a new run of the same callback begins anew
    assert resumed.times == straight.times
    assert [record["metrics"] for record in second] == [record["metrics"] for record in whole]


def test_a_round_without_clients_takes_no_time():
    made, logged = make_module(linear_net()), {}
    made.log = lambda name, value: logged.update({name: value})
    callback = RoundTime()
    callback.on_train_batch_end(make_trainer(), made, None, RoundResult(0, []), 0)
    assert logged == dict.fromkeys(("time/round", "time/mean", "time/std", "time/total"), 0.0)
    assert callback.times.parts == 0


def test_what_cannot_be_simulated_is_told_before_training(tmp_path):
    class NoRound(RoundTime):
        def on_cohort_start(self, trainer, module, tasks):
            raise AssertionError("a round was begun")

    with pytest.raises(ConfigError, match="there are no tiers"):
        run(tmp_path, NoRound(DeviceSpeeds(latency_ms=1)), tiers=None, assignment=None)
    with pytest.raises(DataError, match=r"none\.csv cannot be read"):
        run(tmp_path, NoRound(DeviceSpeeds(CSVTrace(tmp_path / "none.csv"))))
