"""Tests invariant dropout: the units that stragglers leave out, by hand and by brute force, and the state."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.assignment import InvariantUnits
from lit_fednas.assignment.invariant_units import left_out
from lit_fednas.messages import ClientResult, ClientTask, UnitChangeStatistics
from lit_fednas.supernets import SlicedCNN, UnitMask, Width, WidthSupernet
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = WidthSupernet((1, 4, 4), 3, SlicedCNN((4, 6)), widths=[1, 0.5, 0.25])
TIERS = (Tier("slow", {}), Tier("slower", {}), Tier("fast", {}))
RATIOS = {"slow": 0.5, "slower": 0.25, "fast": 1}
PLACES = (0, 1, 2, 2, 2)


def invariant(ratios=RATIOS, tiers=TIERS, tier_numbers=PLACES, **settings) -> InvariantUnits:
    assignment = InvariantUnits(ratios, **settings)
    assignment.setup(NET, Population(len(tier_numbers), tiers, tier_numbers))
    return assignment


def planned_archs(assignment: InvariantUnits, cohort=(0, 1, 2), round: int = 1) -> list:
    return planned(assignment, round, list(cohort), NET.space, np.random.default_rng(0))


def result(client: int, changes=None, arch=None, status: str = "ok") -> ClientResult:
    arch = arch or Width(1.0)
    statistics = () if changes is None else (UnitChangeStatistics(changes),)
    return ClientResult(ClientTask(0, client, arch, 10), status, statistics=statistics)


def changes(first, second) -> dict[str, list[float]]:
    return {"layer0": list(first), "layer1": list(second)}


def by_raising_thresholds(changes_seen: np.ndarray, step: float) -> list[list[int]]:
    """Returns the units that are left out for each count from 0 on, with a threshold that is raised step by step."""
    units = range(changes_seen.shape[1])
    positive = [change for row in changes_seen.tolist() for change in row if change > 0]
    threshold = min(positive, default=0.0)

    def below() -> list[int]:
        return [unit for unit in units if 2 * sum(row[unit] <= threshold for row in changes_seen) > len(changes_seen)]

    units_by_count = []
    for count in range(len(units) + 1):
        while len(below()) < count:
            threshold *= step
        by_change = sorted(
            below(), key=lambda unit: (sum(row[unit] for row in changes_seen) / len(changes_seen), -unit)
        )
        units_by_count.append(sorted(by_change[:count]))
    return units_by_count


@pytest.mark.parametrize(("clients", "step"), [(1, 1.3), (2, 1.01), (3, 3.0), (4, 1.3), (7, 3.0)])
def test_against_brute_force(clients, step):
    rng = np.random.default_rng(clients)
    num_different = 0
    for _ in range(20):
        units = int(rng.integers(1, 12))
        changes_seen = rng.lognormal(sigma=1.5, size=(clients, units))
        expected = by_raising_thresholds(changes_seen, step)
        for count in range(units + 1):
            assert left_out(changes_seen, count, step) == expected[count]
            least_changing = sorted(np.argsort(np.median(changes_seen, axis=0))[:count].tolist())
            num_different += left_out(changes_seen, count, step) != least_changing
    if step == 3.0 and clients > 2:
        assert num_different  # the threshold has an effect


def test_unchanged_units_are_left_out_first():
    changes_seen = np.array([[0.5, 0.0, 0.1, 0.0]])
    assert left_out(changes_seen, 1, 1.1) == [3]
    assert left_out(changes_seen, 2, 1.1) == [1, 3]
    assert left_out(changes_seen, 3, 1.1) == [1, 2, 3]
    assert left_out(np.zeros((2, 4)), 3, 1.1) == [1, 2, 3]
    assert left_out(np.array([[1e-30, 1e10, 3e11, 2e9]]), 3, 1.001) == [0, 1, 3]  # huge differences terminate


def test_units_at_a_threshold_are_invariant():
    """Rounding errors of powers and logarithms must not exclude units exactly at the thresholds."""
    for smallest, step in [(0.1, 1.1), (0.3, 1.3), (0.7, 1.5), (0.05, 3.0)]:
        thresholds = [smallest]
        while len(thresholds) < 40:
            thresholds.append(thresholds[-1] * step)
        for count in range(1, len(thresholds)):
            assert len(left_out(np.array([thresholds]), count, step)) == count


def test_stragglers_keep_changing_units():
    """Of 4 and 6 units, a half keeps 2 and 3, a quarter 1 and 2."""
    assignment = invariant()
    assert planned_archs(assignment, (0, 1, 2, 0)) == [
        Width(0.5),
        Width(0.25),
        Width(1.0),
        Width(0.5),
    ]  # the first units, without statistics
    assert [assignment.deployed(client) for client in (0, 2)] == [Width(0.5), Width(1.0)]
    assignment.observe([result(2, changes([0.4, 0.1, 0.3, 0.2], [0.1, 0.6, 0.2, 0.5, 0.3, 0.4]))])
    slow, slower, fast, second_slow = planned_archs(assignment, (0, 1, 2, 0))
    assert slow == second_slow == UnitMask(((0, 2), (1, 3, 5)))
    assert slower == UnitMask(((0,), (1, 3)))
    assert fast == Width(1.0)
    assignment.setup(NET, Population(len(PLACES), TIERS, PLACES))  # another run
    assert planned_archs(assignment) == planned_archs(invariant())


def test_equal_changes_keep_the_units_of_a_plain_width():
    assignment = invariant()
    assignment.observe([result(2, changes([0.3] * 4, [0.0] * 6))])
    assert list(NET.kept_units(Width(0.5)).values()) == [*map(list, planned_archs(assignment)[0].units)]


def test_the_last_round_with_statistics_counts():
    """Statistics of stragglers and failed clients do not count."""
    ascending, descending = changes([1, 2, 3, 4], [1, 2, 3, 4, 5, 6]), changes([4, 3, 2, 1], [6, 5, 4, 3, 2, 1])
    assignment = invariant()
    assignment.observe([result(2, descending)])
    assert planned_archs(assignment)[0] == UnitMask(((0, 1), (0, 1, 2)))
    assignment.observe([result(3, ascending), result(0, arch=Width(0.5)), result(4, status="error")])
    assert planned_archs(assignment)[0] == UnitMask(((2, 3), (3, 4, 5)))
    assignment.observe([result(0, arch=Width(0.5)), result(4, status="error")])
    assignment.observe([])
    assert planned_archs(assignment)[0] == UnitMask(((2, 3), (3, 4, 5)))


LIMITED = (Tier("slow", {"macs": NET.macs(Width(1.0)) - 1.0}), *TIERS[1:])

test_wrong_settings = refusals(
    (RATIOS, {"step": 1.0}, "assignment.step: 1.0 must be above 1"),
    ({"slow": 0.5, "slower": 0.25, "fast": 0.5}, {}, "ratios: slow 0.5, slower 0.25, fast 0.5; the clients"),
    ({"slow": 1, "slower": 0.25, "fast": 1}, {}, "assignment.ratios.slow: 1 is outside the tier's limits"),
    call=lambda ratios, settings: invariant(ratios, LIMITED, **settings),
)
