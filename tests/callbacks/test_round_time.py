"""Tests the simulated time of rounds against the records of runs, and by hand."""

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
    trained_module = module(**settings)
    callbacks = [callback, RunRecorder()]
    trainer = make_trainer(ROUNDS, callbacks=callbacks, default_root_dir=str(folder))
    trainer.fit(trained_module, datamodule=tiny_data(8, partitioner=Dirichlet(1.0, min_size=4)))
    return trained_module, list(read_rounds(folder))


def server_round(module, results):
    """Returns round 0 with the clients' results."""
    round = ServerRound(0, module.restructure, module.aggregation)
    round.results = results
    return round


def seconds_of(record, speeds, module):
    """Returns the seconds of each client of a round."""
    client_speeds = [
        speeds.client_speed(client["client"], module.population, module.seed) for client in record["clients"]
    ]
    return [
        round_seconds(client, speed.macs_per_second, speed.bandwidth_mbps)
        for client, speed in zip(record["clients"], client_speeds, strict=True)
    ]


def round_seconds(client, macs_per_second, bandwidth_mbps):
    """Returns the seconds of training and both transfers."""
    sent = client["bytes_down"] + client["bytes_up"]
    return 3 * client["macs"] / macs_per_second + 8 * sent / (1e6 * bandwidth_mbps)


@pytest.mark.parametrize("speeds", [SPEEDS, DeviceSpeeds(bandwidth=SPEEDS.bandwidth, latency_ms=500.0)])
def test_by_hand(tmp_path, speeds):
    callback = RoundTime(speeds)
    trained_module, records = run(tmp_path, callback, faults=FaultPolicy(dropout_rate=0.3))
    statuses = [client["status"] for record in records for client in record["clients"]]
    assert set(statuses) == {"ok", "dropped"}  # dropped clients have their download in the records
    total, all_seconds = 0.0, []
    for record in records:
        seconds = seconds_of(record, speeds, trained_module)
        all_seconds += seconds
        total += max(seconds)
        logged = {name: record["metrics"][f"time/{name}"] for name in ("round", "mean", "std", "total")}
        expected = {"round": max(seconds), "mean": np.mean(seconds), "std": np.std(seconds), "total": total}
        assert logged == pytest.approx(expected, rel=1e-5)
    assert callback.times.mean == pytest.approx(np.mean(all_seconds))
    assert callback.times.deviation == pytest.approx(np.std(all_seconds))
    assert callback.times.parts == len(all_seconds) == 4 * ROUNDS


class Listed(DeviceSpeeds):
    """Client ``k`` computes 1000 (k + 1) multiply-accumulates and sends 100 bytes per second."""

    def client_speed(self, client, population, seed):
        return ClientSpeed(1000.0 * (client + 1), 0.0008)


def test_groups_and_withheld_updates_by_hand():
    """One linear layer: 256 multiply-accumulates per example, 1040 bytes per direction.

    Group 0 trains two candidates. "a": client 0 trains on 100 examples, tests on 50, and sends: 3 * 25.6 + 12.8 +
    20.8 = 110.4 s; client 1, twice as fast, trains on 200: 76.8 + 20.8 = 97.6 s. "b" is withheld: client 0 trains on
    100, tests on 50: 76.8 + 12.8 + 10.4 = 100 s; client 1 trains on 300, tests on 150: 115.2 + 19.2 + 10.4 = 144.8 s.
    Group 1 has only client 3, which is dropped: 10.4 s.
    """
    untrained_module, logged = make_module(linear_net()), {}
    untrained_module.meet(SimpleNamespace(num_clients=4, sizes=[100] * 4, task=untrained_module.task))
    untrained_module.log = lambda name, value: logged.update({name: value})
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
        callback.on_train_batch_end(make_trainer(), untrained_module, None, server_round(untrained_module, results), 0)
    clients = [110.4 + 100, 97.6 + 144.8, 10.4]
    expected = {"round": 110.4 + 144.8, "mean": np.mean(clients), "std": np.std(clients), "total": 2 * 255.2}
    assert logged == pytest.approx({f"time/{name}": value for name, value in expected.items()})
    assert callback.times.parts == 6
    without_groups = RoundTime(Listed())
    ungrouped = [replace(result, task=replace(result.task, group=None)) for result in results]
    without_groups.on_train_batch_end(
        make_trainer(), untrained_module, None, server_round(untrained_module, ungrouped), 0
    )
    assert logged["time/round"] == pytest.approx(97.6 + 144.8)
