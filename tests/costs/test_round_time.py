"""Times of clients' parts in rounds, against numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.costs import ClientSpeed, CompletionTimes, DeviceProfile, RoundCost


def test_a_part_by_hand():
    """3e6 multiply-accumulates, three times, at 2e6 a second; 3e6 bytes at 1e6 a second."""
    assert ClientSpeed(2e6, 8).seconds(RoundCost(3 * 10**6, 10**6, 2 * 10**6)) == 4.5 + 3
    assert ClientSpeed(2e6, 8).seconds(RoundCost(0, 10**6, 0)) == 1
    device = DeviceProfile("phone", 1, macs_per_second=2e6, bandwidth_mbps=8)
    assert device.round_seconds(3 * 10**6, 10**6, 2 * 10**6) == 7.5


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_a_run_against_numpy(offset):
    draws = np.random.default_rng(0)
    rounds = [list(offset + draws.random(draws.integers(1, 9))) for _ in range(40)]
    rounds[11] = []
    times = CompletionTimes()
    for seconds in rounds:
        times = times.after(seconds)
    every = np.concatenate(rounds)
    assert times.parts == len(every)
    assert times.mean == pytest.approx(every.mean())
    assert times.deviation == pytest.approx(every.std(), rel=1e-6)
    assert times.total == pytest.approx(sum(max(seconds) for seconds in rounds if seconds))


def test_nothing_yet():
    assert CompletionTimes().after([]) == CompletionTimes(0, 0.0, 0.0, 0.0)
    assert CompletionTimes().deviation == 0
