"""Tiers of clients: shares by hand, draws by statistics, traces device by device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lit_fednas.tiers import (
    DeviceTrace,
    ListedTiers,
    SyntheticTrace,
    Tier,
    TierShares,
    TraceTiers,
)
from tests.support import refusals


def tiers(*limits: float, cost: str = "macs") -> list[Tier]:
    return [Tier(f"tier{number}", {cost: limit}) for number, limit in enumerate(limits, start=1)]


FOUR = tiers(1.0, 2.0, 3.0, 4.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counts(positions: np.ndarray, tiers: int) -> list[int]:
    return np.bincount(positions, minlength=tiers).tolist()


# ---- shares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "clients", "expected"),
    [
        # Speech Commands (App. E.4): 1689.6, 26.4, 26.4 and 369.6 clients; the two larger remainders are filled
        ([0.8, 0.0125, 0.0125, 0.175], 2112, [1690, 26, 26, 370]),
        (None, 10, [3, 3, 2, 2]),  # 2.5 each; equal remainders are filled from the least capable on
        ([0.0, 0.5, 0.0, 0.5], 3, [0, 2, 0, 1]),
        ([0.1, 0.7, 0.1, 0.1], 10, [1, 7, 1, 1]),  # rounding errors keep 0.7 * 10 and 0.1 * 10 from whole numbers
    ],
)
def test_shares_by_largest_remainder(shares, clients, expected):
    assert counts(TierShares(shares).places(FOUR, clients, rng()), 4) == expected


def test_clients_are_in_random_tiers_unless_ordered_or_listed():
    """Of 8 clients in two tiers of 4, each is in the upper tier half of the time."""
    upper = sum(TierShares().places(tiers(1.0, 2.0), 8, rng(seed)) for seed in range(2000))
    assert upper == pytest.approx(1000, abs=5 * (2000 * 0.5 * 0.5) ** 0.5)
    ordered = TierShares([0.5, 0.25, 0.0, 0.25], shuffle=False).places(FOUR, 8, rng())
    assert ordered.tolist() == [0, 0, 0, 0, 1, 1, 3, 3]
    listed = ListedTiers({"tier3": [4, 0], "tier1": [1, 2], "tier4": [3]})
    assert listed.places(FOUR, 5, rng()).tolist() == [2, 0, 0, 3, 2]


# ---- devices ------------------------------------------------------------------------------------------


class FixedTrace(DeviceTrace):
    """Devices with these speeds, in this order."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self.values = np.array(speeds, dtype=float)

    def speeds(self, count, rng):
        return np.resize(self.values, count)

    def quantile(self, share):
        return float(np.quantile(self.values, share))


def test_tiers_of_a_trace_by_hand():
    """The fastest, of speed 8, affords 4e6; so one of speed s affords s / 2 millions."""
    limits = tiers(1e6, 2e6, 3e6, 4e6)
    #           too weak  just tier1      tier2     tier3     just and above tier4
    speeds = [0.2, 1.99, 2.0, 3.99, 4.0, 5.0, 6.0, 7.99, 8.0]
    expected = [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert TraceTiers(FixedTrace(speeds), full=1.0).places(limits, 9, rng()).tolist() == expected
    # if the median affords all, a speed of 4 affords 4e6
    assert TraceTiers(FixedTrace(speeds), full=0.5).places(limits, 9, rng()).tolist() == [0, 0, 1, 2, 3, 3, 3, 3, 3]


def test_measured_devices_get_the_highest_tier_that_they_afford():
    limits = tiers(10.0, 20.0, 40.0)
    speeds = [8e9, 2e9, 1e9, 4e9, 3.9e9]  # the fastest affords 40, so 1e9 affords 5
    assert TraceTiers(full=1.0).places(limits, 5, rng(), speeds).tolist() == [2, 0, 0, 1, 0]
    # the median, 3.9e9, affords 40 as well, 2e9 then 20.5, and 1e9 10.3
    assert TraceTiers(full=0.5).places(limits, 5, rng(), speeds).tolist() == [2, 1, 0, 2, 2]


test_refusals = refusals(
    (lambda: TierShares([0.5, 0.4]), FOUR, "allocation.shares: [0.5, 0.4] must be at least 0 and add up to 1"),
    (lambda: TierShares([0.5, 0.5]), FOUR, "allocation.shares: [0.5, 0.5] must be 4 shares, one for each tier"),
    (lambda: ListedTiers({"tier9": [0, 1, 2]}), FOUR, "allocation.clients: 'tier9' is not a tier; there are: tier1, "),
    (
        lambda: ListedTiers({"tier1": [0, 1], "tier2": [1]}),
        FOUR,
        "allocation.clients: has 3 clients; list each of 0 to",
    ),
    (TraceTiers, FOUR, "tiers.allocation.trace: null needs measured speeds, .*; give a trace"),
    (
        lambda: TraceTiers(SyntheticTrace()),
        tiers(3e6, 1e6),
        r"allocation: .*limits of 'macs', 3e\+06, 1e\+06, must not fall; list the least tier first",
    ),
    call=lambda make, tiers: make().places(tiers, 3, rng()),
)
