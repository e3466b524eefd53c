"""The partition of clients into groups, against a slow reading of FedNAS's section 4.2 and all partitions."""

from fractions import Fraction

import numpy as np
import pytest

from lit_fednas.callbacks.pruning import balanced_groups
from lit_fednas.callbacks.pruning.groups import group_report, random_groups


def draw(seed: int, clients: int, sizes: tuple[int, int], classes: int = 3, alpha: float = 0.3) -> np.ndarray:
    """Clients of random size, each with a class mix of its own."""
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet([alpha] * classes, clients)
    return np.stack([rng.multinomial(rng.integers(*sizes), mix) for mix in mixes])


def exact_distance(held: list[int], total: list[int]) -> Fraction:
    if not sum(held):
        return Fraction(2)
    return sum(
        (abs(Fraction(h, sum(held)) - Fraction(t, max(1, sum(total)))) for h, t in zip(held, total, strict=True)),
        Fraction(0),
    )


def slow_groups(counts: list[list[int]], groups: int, balance: Fraction) -> list[list[int]]:
    """The greedy partition in exact fractions, one client and one group at a time."""
    total = [sum(column) for column in zip(*counts, strict=True)]
    found: list[list[int]] = [[] for _ in range(groups)]

    def held(members: list[int]) -> list[int]:
        return [sum(counts[m][c] for m in members) for c in range(len(total))]

    for client in sorted(range(len(counts)), key=lambda c: (-sum(counts[c]), c)):
        sizes = [sum(held(members)) for members in found]
        options = []
        for group in range(groups):
            later = [[*members, client] if g == group else members for g, members in enumerate(found)]
            after = [sum(held(members)) for members in later]
            if sizes[group] == min(sizes) or max(after) <= balance * min(after):
                mean = sum(exact_distance(held(members), total) for members in later)
                options.append((mean, sizes[group], len(found[group]), group))
        found[min(options)[-1]].append(client)
    return [sorted(members) for members in found]


class TestBalancedGroups:
    COUNTS = np.array([[6, 0], [0, 5], [0, 4], [3, 0], [2, 0]])

    def test_worked_by_hand(self) -> None:
        """Everyone is (0.55, 0.45). The first two clients open a group each: sizes 6 and 5.

        With r = 1.5 client 2 may not make group 0 ten to five, nor client 3 group 1 twelve to six; client 4
        finds 9 and 9 and mends group 1. With r = 2 client 2 may join group 0, which becomes (6, 4), 0.1 from
        everyone; client 3 must join group 1, (3, 5); client 4 brings that to (5, 5).
        """
        assert balanced_groups(self.COUNTS, 2, 1.5) == [[0, 3], [1, 2, 4]]
        assert balanced_groups(self.COUNTS, 2, 2.0) == [[0, 2], [1, 3, 4]]
        reports = group_report(self.COUNTS, [[0, 2], [1, 3, 4]])
        assert [(report["clients"], report["examples"]) for report in reports] == [(2, 10), (3, 10)]
        assert [report["distance"] for report in reports] == pytest.approx([0.1, 0.1])

    @pytest.mark.parametrize("alpha", [0.1, 1.0])
    @pytest.mark.parametrize(("groups", "balance"), [(2, "11/10"), (3, "3/2"), (5, "2"), (1, "1"), (4, "1")])
    def test_equals_the_slow_reading(self, alpha: float, groups: int, balance: str) -> None:
        for seed in range(8):
            counts = draw(seed, 17, (0, 9), alpha=alpha)
            expected = slow_groups(counts.tolist(), groups, Fraction(balance))
            assert balanced_groups(counts, groups, float(Fraction(balance))) == expected

    def test_the_balance_itself_is_allowed(self) -> None:
        """1.15 times 100 is a little below 115 in floating point, and still 5 may join 110."""
        assert 1.15 * 100 < 115
        assert balanced_groups(np.array([[110, 0], [0, 100], [0, 5]]), 2, 1.15) == [[0, 2], [1]]
        assert balanced_groups(np.array([[110, 0], [0, 100], [0, 6]]), 2, 1.15) == [[0], [1, 2]]

    def test_clients_without_examples_leave_no_group_without_a_client(self) -> None:
        counts = np.array([[0, 0], [3, 1], [0, 0], [0, 0]])
        groups = balanced_groups(counts, 3)
        assert groups == [[1], [0, 3], [2]]
        assert [report["distance"] for report in group_report(counts, groups)] == [0, 2, 2]
        assert balanced_groups(np.zeros((4, 2), dtype=int), 2) == [[0, 2], [1, 3]]

    def test_equal_distances_go_to_the_lower_number(self) -> None:
        """Three tenths and seven tenths differ in the last bit from what their difference is on paper."""
        counts = np.array([[3, 7]] * 9)
        assert balanced_groups(counts, 3, 1.0) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_random_groups_are_equal_in_size_and_follow_the_generator() -> None:
    first, again, other = (random_groups(23, 4, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert sorted(map(len, first)) == [5, 6, 6, 6]
    assert sorted(client for group in first for client in group) == list(range(23))
    assert all(group == sorted(group) for group in first)
    assert first == again != other
