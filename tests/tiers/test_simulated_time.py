"""Speeds of clients' devices, drawn or by their tier, and simulated times against numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.tiers import CompletionTimes, DeviceSpeeds, Population, SyntheticTrace, Tier
from lit_fednas.tiers.devices import round_seconds

NO_TIERS = Population(3)
TIERS = Population(3, (Tier("slow", {"macs": 2e6}), Tier("fast", {"macs": 6e6, "bytes": 1e3})), (1, 0, 1))


def test_a_client_keeps_its_speed():
    speeds = DeviceSpeeds()
    assert speeds.client_speed(7, NO_TIERS, seed=1) == DeviceSpeeds().client_speed(7, NO_TIERS, seed=1)
    assert speeds.client_speed(7, NO_TIERS, seed=1) not in (
        speeds.client_speed(7, NO_TIERS, seed=2),
        speeds.client_speed(8, NO_TIERS, seed=1),
    )
    assert speeds.client_speed(1, TIERS, seed=1) == speeds.client_speed(1, NO_TIERS, seed=1)


def test_a_population_is_spread_as_its_traces():
    speeds = DeviceSpeeds(SyntheticTrace(median=1e9, spread=5), SyntheticTrace(median=4, spread=50))
    speeds_of_clients = [speeds.client_speed(client, NO_TIERS, seed=0) for client in range(3000)]
    logs = np.log([(speed.macs_per_second, speed.bandwidth_mbps) for speed in speeds_of_clients])
    assert np.median(logs, axis=0) == pytest.approx(np.log([1e9, 4]), abs=0.1)
    low, high = np.quantile(logs, [0.05, 0.95], axis=0)
    assert high - low == pytest.approx(np.log([5, 50]), rel=0.1)
    assert abs(np.corrcoef(*logs.T)[0, 1]) < 0.06


def test_speeds_of_tiers_by_hand():
    speeds = DeviceSpeeds(latency_ms=50)
    speeds.check(TIERS)
    clients = [speeds.client_speed(client, TIERS, seed=0) for client in range(3)]
    assert [client.macs_per_second for client in clients] == [1.2e8, 4e7, 1.2e8]  # 6e6 and 2e6 in 50 ms
    bandwidths = [DeviceSpeeds().client_speed(client, NO_TIERS, seed=0).bandwidth_mbps for client in range(3)]
    assert [client.bandwidth_mbps for client in clients] == bandwidths


def test_tiers_that_give_no_speeds_are_refused():
    mixed = Population(1, (Tier("a", {"macs": 1.0}), Tier("b", {"bytes": 1.0})), (0,))
    for population, words in ((NO_TIERS, "there are no tiers"), (mixed, "the tier 'b' has no limit of macs")):
        DeviceSpeeds().check(population)
        with pytest.raises(ConfigError, match=f"but {words}; set model.tiers"):
            DeviceSpeeds(latency_ms=5).check(population)


# ---- times in rounds ----------------------------------------------------------------------------------


FIRST = (0, "a", 0, 3.0), (0, "b", 0, 4.0)
SECOND = (1, "a", 1, 5.0), (2, "a", 1, 2.0)
THIRD = (3, "c", 2, 6.0), (3, "d", 2, 0.5), (3, "e", 2, 1.0)


@pytest.mark.parametrize(
    ("tasks", "clients", "whole"),
    [
        # client 1 takes 2 + 3 for consecutive tasks, client 2 takes 4: neither waits for the other
        ([(3, "b", None, 1.0), (1, "a", None, 2.0), (2, "a", None, 4.0), (1, "b", None, 3.0)], [1.0, 5.0, 4.0], 5.0),
        # max(1, 6) + max(5, 2): a group waits for its slowest client at every candidate
        ([(0, "a", 0, 1.0), (1, "a", 0, 6.0), (0, "b", 0, 5.0), (1, "b", 0, 2.0)], [6.0, 8.0], 11.0),
        # groups work side by side, the second on a candidate of the first too
        (FIRST, [7.0], 7.0),
        (SECOND, [5.0, 2.0], 5.0),
        (FIRST + SECOND, [7.0, 5.0, 2.0], 7.0),
        (SECOND + THIRD + FIRST, [5.0, 2.0, 7.5, 7.0], 7.5),
        ((*FIRST, (4, "a", None, 9.0)), [7.0, 9.0], 9.0),  # the last client is in no group
        ((*FIRST, (4, "a", None, 6.0)), [7.0, 6.0], 7.0),
    ],
)
def test_clients_and_groups_by_hand(tasks, clients, whole):
    """Tasks with their seconds, from ``(client, arch, group, seconds)``."""
    parts = [(ClientTask(0, client, arch, 1, group=group), seconds) for client, arch, group, seconds in tasks]
    assert round_seconds(parts) == (clients, whole)


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_a_run_against_numpy(offset):
    draws = np.random.default_rng(0)
    rounds = [list(offset + draws.random(draws.integers(1, 9))) for _ in range(40)]
    rounds[11] = []
    times = CompletionTimes()
    assert times.after([], 0.0) == CompletionTimes(0, 0.0, 0.0, 0.0)
    assert times.deviation == 0
    for seconds in rounds:
        times = times.after(seconds, max(seconds, default=0.0))
    all_seconds = np.concatenate(rounds)
    assert times.parts == len(all_seconds)
    assert times.mean == pytest.approx(all_seconds.mean())
    assert times.deviation == pytest.approx(all_seconds.std(), rel=1e-6)
    assert times.total == pytest.approx(sum(max(seconds) for seconds in rounds if seconds))
    longer = times.after([1.0, 1.0], 11.0)  # the round is longer than its slowest client's time
    assert (longer.parts, longer.total) == (times.parts + 2, times.total + 11)
