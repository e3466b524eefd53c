"""Invariant dropout: which units stragglers leave out, by hand and by brute force; what is remembered."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.assignment import InvariantUnits
from lit_fednas.assignment.invariant_units import left_out
from lit_fednas.messages import ClientResult, ClientTask, UnitChangesReport
from lit_fednas.supernets import SlicedCNN, UnitMask, Width, WidthSupernet
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = WidthSupernet((1, 4, 4), 3, SlicedCNN((4, 6)), widths=[1, 0.5, 0.25])
TIERS = (Tier("slow", {}), Tier("slower", {}), Tier("fast", {}))
RATIOS = {"slow": 0.5, "slower": 0.25, "fast": 1}
PLACES = (0, 1, 2, 2, 2)


def invariant(ratios=RATIOS, tiers=TIERS, places=PLACES, **settings) -> InvariantUnits:
    assignment = InvariantUnits(ratios, **settings)
    assignment.setup(NET, Population(len(places), tiers, places))
    return assignment


def given(assignment: InvariantUnits, cohort=(0, 1, 2), round: int = 1) -> list:
    return planned(assignment, round, list(cohort), NET.space, np.random.default_rng(0))


def result(client: int, changes=None, arch=None, status: str = "ok") -> ClientResult:
    arch = arch or Width(1.0)
    reports = () if changes is None else (UnitChangesReport(changes),)
    return ClientResult(ClientTask(0, client, arch, 10), status, reports=reports)


def changes(first, second) -> dict[str, list[float]]:
    return {"layer0": list(first), "layer1": list(second)}


def raised(seen: np.ndarray, step: float) -> list[list[int]]:
    """What is left out for counts from 0 on, as the text of the method has it.

    The threshold goes up as long as there are too few; a greater count goes on where a smaller one ended.
    """
    units = range(seen.shape[1])
    positive = [change for row in seen.tolist() for change in row if change > 0]
    threshold = min(positive, default=0.0)

    def below() -> list[int]:
        return [unit for unit in units if 2 * sum(row[unit] <= threshold for row in seen) > len(seen)]

    left = []
    for count in range(len(units) + 1):
        while len(below()) < count:
            threshold *= step
        by_change = sorted(below(), key=lambda unit: (sum(row[unit] for row in seen) / len(seen), -unit))
        left.append(sorted(by_change[:count]))
    return left


@pytest.mark.parametrize(("clients", "step"), [(1, 1.3), (2, 1.01), (3, 3.0), (4, 1.3), (7, 3.0)])
def test_against_brute_force(clients, step):
    rng = np.random.default_rng(clients)
    looked_at = 0
    for _ in range(20):
        units = int(rng.integers(1, 12))
        seen = rng.lognormal(sigma=1.5, size=(clients, units))
        expected = raised(seen, step)
        for count in range(units + 1):
            assert left_out(seen, count, step) == expected[count]
            least = sorted(np.argsort(np.median(seen, axis=0))[:count].tolist())
            looked_at += left_out(seen, count, step) != least
    if step == 3.0 and clients > 2:
        assert looked_at  # the threshold makes a difference


def test_units_that_do_not_change_at_all_go_first():
    seen = np.array([[0.5, 0.0, 0.1, 0.0]])
    assert left_out(seen, 1, 1.1) == [3]
    assert left_out(seen, 2, 1.1) == [1, 3]
    assert left_out(seen, 3, 1.1) == [1, 2, 3]
    assert left_out(np.zeros((2, 4)), 3, 1.1) == [1, 2, 3]
    assert left_out(np.array([[1e-30, 1e10, 3e11, 2e9]]), 3, 1.001) == [0, 1, 3]  # huge differences end


def test_a_threshold_that_is_just_reached_is_enough():
    """Powers and logarithms round: units that lie at the very thresholds must not fall out."""
    for least, step in [(0.1, 1.1), (0.3, 1.3), (0.7, 1.5), (0.05, 3.0)]:
        seen = [least]
        while len(seen) < 40:
            seen.append(seen[-1] * step)
        for count in range(1, len(seen)):
            assert len(left_out(np.array([seen]), count, step)) == count


def test_stragglers_keep_what_changes():
    """4 and 6 units; half keeps 2 and 3, a quarter 1 and 2."""
    assignment = invariant()
    assert given(assignment, (0, 1, 2, 0)) == [Width(0.5), Width(0.25), Width(1.0), Width(0.5)]  # the first, so far
    assert [assignment.deployed(client) for client in (0, 2)] == [Width(0.5), Width(1.0)]
    assignment.observe([result(2, changes([0.4, 0.1, 0.3, 0.2], [0.1, 0.6, 0.2, 0.5, 0.3, 0.4]))])
    slow, slower, fast, again = given(assignment, (0, 1, 2, 0))
    assert slow == again == UnitMask(((0, 2), (1, 3, 5)))
    assert slower == UnitMask(((0,), (1, 3)))
    assert fast == Width(1.0)
    assignment.setup(NET, Population(len(PLACES), TIERS, PLACES))  # another run
    assert given(assignment) == given(invariant())


def test_where_nothing_differs_units_are_those_of_a_plain_width():
    assignment = invariant()
    assignment.observe([result(2, changes([0.3] * 4, [0.0] * 6))])
    assert list(NET.kept(Width(0.5)).values()) == [*map(list, given(assignment)[0].units)]


def test_whose_reports_count():
    """Those of the last round that had any: no stragglers, no failures; a round without leaves all as it is."""
    ahead, back = changes([1, 2, 3, 4], [1, 2, 3, 4, 5, 6]), changes([4, 3, 2, 1], [6, 5, 4, 3, 2, 1])
    assignment = invariant()
    assignment.observe([result(2, back)])
    assert given(assignment)[0] == UnitMask(((0, 1), (0, 1, 2)))
    assignment.observe([result(3, ahead), result(0, arch=Width(0.5)), result(4, status="error")])
    assert given(assignment)[0] == UnitMask(((2, 3), (3, 4, 5)))
    assignment.observe([result(0, arch=Width(0.5)), result(4, status="error")])
    assignment.observe([])
    assert given(assignment)[0] == UnitMask(((2, 3), (3, 4, 5)))


LIMITED = (Tier("slow", {"macs": NET.macs(Width(1.0)) - 1.0}), *TIERS[1:])

test_wrong_settings = refusals(
    (RATIOS, {"step": 1.0}, "assignment.step: 1.0 must be above 1"),
    ({"slow": 0.5, "slower": 0.25, "fast": 0.5}, {}, "ratios: slow 0.5, slower 0.25, fast 0.5; the clients"),
    ({"slow": 1, "slower": 0.25, "fast": 1}, {}, "assignment.ratios.slow: 1 is outside of the tier's limits"),
    call=lambda ratios, settings: invariant(ratios, LIMITED, **settings),
)
