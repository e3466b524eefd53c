"""Which clients belong to which tier: shares by hand, draws by statistics, traces device by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.tiers import (
    CSVTrace,
    DeviceTrace,
    ListedTiers,
    MeasuredTiers,
    SyntheticTrace,
    Tier,
    TierShares,
    TraceTiers,
)


def tiers(*limits: float, cost: str = "macs") -> list[Tier]:
    return [Tier(f"tier{place}", {cost: limit}) for place, limit in enumerate(limits, start=1)]


FOUR = tiers(1.0, 2.0, 3.0, 4.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counts(places: np.ndarray, of: int) -> list[int]:
    found = Counter(places.tolist())
    return [found[place] for place in range(of)]


# ---- shares -------------------------------------------------------------------------------------------


def test_the_first_clients_are_of_the_first_tier_if_asked():
    places = TierShares([0.5, 0.25, 0.0, 0.25], shuffle=False).places(FOUR, 8, rng()).tolist()
    assert places == [0, 0, 0, 0, 1, 1, 3, 3]
    assert TierShares([0.5, 0.25, 0.0, 0.25]).places(FOUR, 8, rng()).tolist() != places


@pytest.mark.parametrize(
    ("shares", "clients", "expected"),
    [
        # Speech Commands (App. E.4): 1689.6, 26.4, 26.4 and 369.6 clients; the two larger remainders are filled
        ([0.8, 0.0125, 0.0125, 0.175], 2112, [1690, 26, 26, 370]),
        (None, 100, [25, 25, 25, 25]),  # CIFAR-10
        (None, 500, [125, 125, 125, 125]),  # CIFAR-100
        (None, 10, [3, 3, 2, 2]),  # 2.5 each; equal remainders are filled from the least capable on
        ([0.1, 0.2, 0.3, 0.4], 7, [1, 1, 2, 3]),  # 0.7, 1.4, 2.1, 2.8: to the first and the last
        ([0.0, 0.5, 0.0, 0.5], 3, [0, 2, 0, 1]),
        ([0.1, 0.7, 0.1, 0.1], 10, [1, 7, 1, 1]),  # 0.7 * 10 and 0.1 * 10 are whole but for their rounding
        (None, 3, [1, 1, 1, 0]),
        (None, 0, [0, 0, 0, 0]),
    ],
)
def test_shares_by_largest_remainder(shares, clients, expected):
    places = TierShares(shares).places(FOUR, clients, rng())
    assert counts(places, 4) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_count_is_a_client_or_more_away_from_its_share(seed):
    draws = rng(seed)
    shares = draws.dirichlet([0.5] * 6)
    clients = int(draws.integers(1, 300))
    found = counts(TierShares(shares.tolist()).places(tiers(*range(1, 7)), clients, draws), 6)
    assert sum(found) == clients
    assert all(abs(count - share * clients) < 1 for count, share in zip(found, shares, strict=True))


def test_who_is_in_which_tier_is_random():
    """Of 8 clients in two tiers of 4: each is in the upper one half of the time, whatever its number."""
    upper = np.zeros(8)
    for seed in range(2000):
        upper += TierShares().places(tiers(1.0, 2.0), 8, rng(seed))
    sigma = (2000 * 0.5 * 0.5) ** 0.5
    assert upper == pytest.approx(1000, abs=5 * sigma)
    assert TierShares().places(FOUR, 40, rng(3)).tolist() == TierShares().places(FOUR, 40, rng(3)).tolist()


@pytest.mark.parametrize("shares", [[0.5, 0.4], [1.5, -0.5], [], [50, 50]])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ConfigError, match=r"tiers.allocation.shares: \[.*\] must not be negative and add up to 1"):
        TierShares(shares)


def test_shares_of_another_number_of_tiers_are_refused():
    with pytest.raises(ConfigError, match=r"tiers.allocation.shares: \[0.5, 0.5\] are 2 for 4 tiers"):
        TierShares([0.5, 0.5]).places(FOUR, 10, rng())


# ---- a list -------------------------------------------------------------------------------------------


def test_listed_tiers():
    listed = ListedTiers({"tier3": [4, 0], "tier1": [1, 2], "tier4": [3]})
    assert listed.places(FOUR, 5, rng()).tolist() == [2, 0, 0, 3, 2]


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({"tier9": [0, 1, 2]}, "'tier9' is not a tier; there are: tier1, tier2, tier3, tier4"),
        ({"tier1": [0, 1]}, "lists 2 clients, which must be 0 to 2, each once"),
        ({"tier1": [0, 1, 2], "tier2": [2]}, "lists 4 clients, which must be 0 to 2, each once"),
        ({"tier1": [0, 1], "tier2": [1]}, "lists 3 clients, which must be 0 to 2, each once"),
        ({"tier1": [1, 2, 3]}, "lists 3 clients, which must be 0 to 2, each once"),
    ],
)
def test_lists_that_are_wrong(clients, words):
    with pytest.raises(ConfigError, match=f"tiers.allocation.clients: {words}"):
        ListedTiers(clients).places(FOUR, 3, rng())


# ---- a trace ------------------------------------------------------------------------------------------


class Given(DeviceTrace):
    """These devices, in this order."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self.given = np.array(speeds, dtype=float)

    def speeds(self, count, rng):
        return np.resize(self.given, count)

    def quantile(self, share):
        return float(np.quantile(self.given, share))


def test_tiers_of_a_trace_by_hand():
    """The fastest, of speed 8, affords 4e6; so one of speed s affords s / 2 millions."""
    limits = tiers(1e6, 2e6, 3e6, 4e6)
    #           too weak  just tier1      tier2     tier3     just and above tier4
    speeds = [0.2, 1.99, 2.0, 3.99, 4.0, 5.0, 6.0, 7.99, 8.0]
    expected = [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert TraceTiers(Given(speeds), full=1.0).places(limits, 9, rng()).tolist() == expected
    # with the median for full, a speed of 4 affords 4e6
    assert TraceTiers(Given(speeds), full=0.5).places(limits, 9, rng()).tolist() == [0, 0, 1, 2, 3, 3, 3, 3, 3]


def test_tiers_of_a_measured_trace(tmp_path):
    """Times of 10, 20, 40 and 400 ms: speeds as 1 : 1/2 : 1/4 : 1/40, and limits as 1 : 1/2 : 1/4."""
    path = tmp_path / "trace.csv"
    path.write_text("phone,ms\na,10\nb,20\nc,40\nd,400\n")
    limits = tiers(1e6, 2e6, 4e6)
    trace = CSVTrace(path, "ms", milliseconds=True)
    places = TraceTiers(trace, full=1.0).places(limits, 4000, rng())
    drawn = trace.speeds(4000, rng())  # the same draws
    place_of = {100.0: 2, 50.0: 1, 25.0: 0, 2.5: 0}
    assert set(drawn) == set(place_of)
    assert places.tolist() == [place_of[speed] for speed in drawn]
    assert counts(places, 3) == pytest.approx([2000, 1000, 1000], abs=5 * (4000 * 0.25) ** 0.5)


def test_full_says_how_many_reach_the_most_capable_tier():
    limits = tiers(1e6, 2e6, 3e6, 4e6)
    for full in (0.5, 0.9):
        places = TraceTiers(SyntheticTrace(), full=full).places(limits, 20_000, rng())
        top = counts(places, 4)[3] / 20_000
        assert top == pytest.approx(1 - full, abs=5 * (full * (1 - full) / 20_000) ** 0.5)


def test_the_cost_that_speed_is_compared_with():
    """Devices of 20, 60 and 100 afford 0.8, 2.4 and 4 operations, or 20, 60 and 100 MACs."""
    limits = [
        Tier(name, {"operations": operations, "macs": macs})
        for name, operations, macs in (("a", 1.0, 1.0), ("b", 2.0, 10.0), ("c", 4.0, 100.0))
    ]
    devices = Given([20.0, 60.0, 100.0])
    assert TraceTiers(devices, full=1.0, cost="macs").places(limits, 3, rng()).tolist() == [1, 1, 2]
    assert TraceTiers(devices, full=1.0, cost="operations").places(limits, 3, rng()).tolist() == [0, 1, 2]
    assert TraceTiers(devices, full=1.0).places(limits, 3, rng()).tolist() == [0, 1, 2]  # their first limit


@pytest.mark.parametrize("full", [0.0, -0.1, 1.1])
def test_a_quantile_that_is_none(full):
    with pytest.raises(ConfigError, match=f"tiers.allocation.full: {full} must be above 0 and at most 1"):
        TraceTiers(SyntheticTrace(), full=full)


def test_tiers_without_the_cost_are_refused():
    with pytest.raises(ConfigError, match=r"tiers.allocation.cost: the tier 'tier1' has no limit of 'bytes'"):
        TraceTiers(SyntheticTrace(), cost="bytes").places(FOUR, 3, rng())
    mixed = [Tier("a", {"macs": 1.0}), Tier("b", {"bytes": 1.0})]
    with pytest.raises(ConfigError, match=r"tiers.allocation.cost: the tier 'b' has no limit of 'macs'"):
        TraceTiers(SyntheticTrace()).places(mixed, 3, rng())


def test_limits_that_fall_are_refused():
    with pytest.raises(ConfigError, match=r"limits of 'macs', 3e\+06, 1e\+06, must not fall; choose another cost"):
        TraceTiers(SyntheticTrace()).places(tiers(3e6, 1e6), 3, rng())


def test_measured_devices_get_the_highest_tier_that_they_afford() -> None:
    limits = [Tier("low", {"macs": 10.0}), Tier("mid", {"macs": 20.0}), Tier("high", {"macs": 40.0})]
    speeds = [8e9, 2e9, 1e9, 4e9, 3.9e9]  # the fastest affords 40, so 1e9 affords 5
    assert MeasuredTiers(full=1.0).places(limits, 5, rng(), speeds).tolist() == [2, 0, 0, 1, 0]
    # the median, 3.9e9, affords 40 as well, 2e9 then 20.5, and 1e9 10.3
    assert MeasuredTiers(full=0.5).places(limits, 5, rng(), speeds).tolist() == [2, 1, 0, 2, 2]


def test_a_simulation_has_no_devices_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"^tiers.allocation: MeasuredTiers takes the speeds of devices, and a"):
        MeasuredTiers().places([Tier("one", {"macs": 1.0})], 3, rng())
