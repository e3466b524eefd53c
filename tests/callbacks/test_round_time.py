"""Simulated time of rounds, recomputed from the records of real runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lit_fednas.assignment import ByTier
from lit_fednas.callbacks import RoundTime, RunRecorder
from lit_fednas.data import Dirichlet
from lit_fednas.federation import FaultPolicy, ServerRound, UniformCohort
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.records import read_rounds
from lit_fednas.tiers import ArchitectureTiers, ClientSpeed, ClientTiers, DeviceSpeeds, SyntheticTrace
from tests.support import linear_net, make_module, make_trainer, tiny_data, tiny_supernet

ROUNDS = 4
SPEEDS = DeviceSpeeds(SyntheticTrace(1e5, 20), SyntheticTrace(0.02, 5))  # computing and sending both matter


def module(**settings):
    tiers = ClientTiers(ArchitectureTiers({"slow": "smallest", "fast": "largest"}))
    settings = {"assignment": ByTier(), "cohort": UniformCohort(count=4), "tiers": tiers, **settings}
    return make_module(tiny_supernet(), **settings)


def run(folder, callback, **settings):
    made = module(**settings)
    callbacks = [callback, RunRecorder()]
    trainer = make_trainer(ROUNDS, callbacks=callbacks, default_root_dir=str(folder))
    trainer.fit(made, datamodule=tiny_data(8, partitioner=Dirichlet(1.0, min_size=4)))
    return made, list(read_rounds(folder))


def server_round(module, results):
    """Round 0, with what the clients answered."""
    round = ServerRound(0, module.restructure, module.aggregation)
    round.results = results
    return round


def seconds_of(record, speeds, made):
    """Of each client of a round, by the formula of a device."""
    known = [speeds.client_speed(client["client"], made.population, made.seed) for client in record["clients"]]
    return [
        round_seconds(client, speed.macs_per_second, speed.bandwidth_mbps)
        for client, speed in zip(record["clients"], known, strict=True)
    ]


def round_seconds(client, macs_per_second, bandwidth_mbps):
    """Three times the forward passes' multiply-accumulates, and every bit that is sent either way."""
    sent = client["bytes_down"] + client["bytes_up"]
    return 3 * client["macs"] / macs_per_second + 8 * sent / (1e6 * bandwidth_mbps)


@pytest.mark.parametrize("speeds", [SPEEDS, DeviceSpeeds(bandwidth=SPEEDS.bandwidth, latency_ms=500.0)])
def test_by_hand(tmp_path, speeds):
    callback = RoundTime(speeds)
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


class Listed(DeviceSpeeds):
    """Client ``k`` computes at 1000 (k + 1) multiply-accumulates a second and sends at 100 bytes a second."""

    def client_speed(self, client, population, seed):
        return ClientSpeed(1000.0 * (client + 1), 0.0008)


def test_groups_tests_and_withheld_updates_by_hand():
    """One linear layer: 256 multiply-accumulates an example, 1040 bytes a way.

    Group 0 trains two candidates. "a": client 0 sees 100 examples, is tested on 50, and sends: 3 * 25.6 + 12.8 +
    20.8 = 110.4 s; client 1 is twice as fast, sees 200: 76.8 + 20.8 = 97.6 s. "b" is withheld: client 0 sees 100,
    tested on 50: 76.8 + 12.8 + 10.4 = 100 s; client 1 sees 300, tested on 150: 115.2 + 19.2 + 10.4 = 144.8 s.
    Group 1 has client 3 alone, which went away: 10.4 s.
    """
    made, logged = make_module(linear_net()), {}
    made.meet(SimpleNamespace(num_clients=4, sizes=[100] * 4, task=made.task))
    made.log = lambda name, value: logged.update({name: value})
    results = [
        ClientResult(ClientTask(0, client, arch, 100, group=group), status, num_seen=seen, num_tested=tested)
        for client, arch, group, status, seen, tested in [
            (0, "a", 0, "ok", 100, 50),
            (1, "a", 0, "ok", 200, 0),
            (0, "b", 0, "withheld", 100, 50),
            (1, "b", 0, "withheld", 300, 150),
            (3, "c", 1, "dropped", 0, 0),
        ]
    ]
    callback = RoundTime(Listed())
    for _ in range(2):
        callback.on_train_batch_end(make_trainer(), made, None, server_round(made, results), 0)
    clients = [110.4 + 100, 97.6 + 144.8, 10.4]
    wanted = {"round": 110.4 + 144.8, "mean": np.mean(clients), "std": np.std(clients), "total": 2 * 255.2}
    assert logged == pytest.approx({f"time/{name}": value for name, value in wanted.items()})
    assert callback.times.parts == 6
    alone = RoundTime(Listed())
    ungrouped = [replace(result, task=replace(result.task, group=None)) for result in results]
    alone.on_train_batch_end(make_trainer(), made, None, server_round(made, ungrouped), 0)
    assert logged["time/round"] == pytest.approx(97.6 + 144.8)
