"""Speeds of clients' devices: drawn once for each, or what its tier says."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.tiers import CSVTrace, DeviceSpeeds, Population, SyntheticTrace, Tier

NO_TIERS = Population(3)
TIERS = Population(3, (Tier("slow", {"macs": 2e6}), Tier("fast", {"macs": 6e6, "bytes": 1e3})), (1, 0, 1))


def test_a_client_keeps_its_speed():
    speeds = DeviceSpeeds()
    assert speeds.of(7, NO_TIERS, seed=1) == DeviceSpeeds().of(7, NO_TIERS, seed=1)
    assert speeds.of(7, NO_TIERS, seed=1) != speeds.of(7, NO_TIERS, seed=2)
    assert speeds.of(7, NO_TIERS, seed=1) != speeds.of(8, NO_TIERS, seed=1)
    assert speeds.of(1, TIERS, seed=1) == speeds.of(1, NO_TIERS, seed=1)


def test_a_population_is_spread_as_its_traces():
    speeds = DeviceSpeeds(SyntheticTrace(median=1e9, spread=5), SyntheticTrace(median=4, spread=50))
    found = [speeds.of(client, NO_TIERS, seed=0) for client in range(3000)]
    compute = np.array([one.macs_per_second for one in found])
    bandwidth = np.array([one.bandwidth_mbps for one in found])
    for values, median, spread in ((compute, 1e9, 5), (bandwidth, 4, 50)):
        assert np.median(values) == pytest.approx(median, rel=0.1)
        low, high = np.quantile(values, [0.05, 0.95])
        assert math.log(high / low) == pytest.approx(math.log(spread), rel=0.1)
    assert abs(np.corrcoef(np.log(compute), np.log(bandwidth))[0, 1]) < 0.06


def test_speeds_of_tiers_by_hand():
    speeds = DeviceSpeeds(latency_ms=50)
    speeds.check(TIERS)
    found = [speeds.of(client, TIERS, seed=0) for client in range(3)]
    assert [one.macs_per_second for one in found] == [1.2e8, 4e7, 1.2e8]  # 6e6 and 2e6 in a twentieth of a second
    assert [one.bandwidth_mbps for one in found] == [
        DeviceSpeeds().of(client, NO_TIERS, seed=0).bandwidth_mbps for client in range(3)
    ]


def test_measured_traces(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("ms,mbps\n2,7\n2,7\n")
    speeds = DeviceSpeeds(CSVTrace(path, "ms", milliseconds=True), CSVTrace(path, "mbps"))
    found = speeds.of(0, NO_TIERS, seed=0)
    assert (found.macs_per_second, found.bandwidth_mbps) == (500, 7)


@pytest.mark.parametrize(
    ("population", "words"),
    [
        (NO_TIERS, "but there are no tiers; set model.tiers"),
        (
            Population(1, (Tier("a", {"macs": 1.0}), Tier("b", {"bytes": 1.0})), (0,)),
            "the tier 'b' has no limit of macs; set model.tiers",
        ),
    ],
)
def test_tiers_without_macs_are_refused(population, words):
    DeviceSpeeds().check(population)
    with pytest.raises(ConfigError, match=re.escape(words)):
        DeviceSpeeds(latency_ms=5).check(population)


@pytest.mark.parametrize("latency", [0, -1.0])
def test_a_latency_is_positive(latency):
    with pytest.raises(ConfigError, match=re.escape(f"speeds.latency_ms: {latency} must be above 0")):
        DeviceSpeeds(latency_ms=latency)
