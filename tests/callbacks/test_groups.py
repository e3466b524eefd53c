"""Tests groups of clients against a slow implementation of FedNAS, section 4.2."""

from fractions import Fraction

import numpy as np
import pytest

from lit_fednas.callbacks.pruning import balanced_groups
from lit_fednas.callbacks.pruning.groups import group_report, random_groups


def draw(seed: int, clients: int, sizes: tuple[int, int], classes: int = 3, alpha: float = 0.3) -> np.ndarray:
    """Returns the class counts of clients with random sizes and class mixes."""
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet([alpha] * classes, clients)
    return np.stack([rng.multinomial(rng.integers(*sizes), mix) for mix in mixes])


def exact_distance(counts: list[int], total: list[int]) -> Fraction:
    if not sum(counts):
        return Fraction(2)
    return sum(
        (abs(Fraction(h, sum(counts)) - Fraction(t, max(1, sum(total)))) for h, t in zip(counts, total, strict=True)),
        Fraction(0),
    )


def slow_groups(counts: list[list[int]], groups: int, balance: Fraction) -> list[list[int]]:
    """Returns the greedy partition, computed with exact fractions."""
    total = [sum(column) for column in zip(*counts, strict=True)]
    partition: list[list[int]] = [[] for _ in range(groups)]

    def totals(members: list[int]) -> list[int]:
        return [sum(counts[m][c] for m in members) for c in range(len(total))]

    for client in sorted(range(len(counts)), key=lambda c: (-sum(counts[c]), c)):
        sizes = [sum(totals(members)) for members in partition]
        options = []
        for group in range(groups):
            later = [[*members, client] if g == group else members for g, members in enumerate(partition)]
            later_sizes = [sum(totals(members)) for members in later]
            if sizes[group] == min(sizes) or max(later_sizes) <= balance * min(later_sizes):
                mean = sum(exact_distance(totals(members), total) for members in later)
                options.append((mean, sizes[group], len(partition[group]), group))
        partition[min(options)[-1]].append(client)
    return [sorted(members) for members in partition]


class TestBalancedGroups:
    COUNTS = np.array([[6, 0], [0, 5], [0, 4], [3, 0], [2, 0]])

    def test_worked_by_hand(self) -> None:
        """All clients have the shares (0.55, 0.45). The first two clients start the groups, with sizes 6 and 5.

        With r = 1.5 client 2 cannot join group 0 (10 to 5), and client 3 cannot join group 1 (12 to 6); client 4
        improves group 1 (9 and 9 before). With r = 2 client 2 joins group 0, which becomes (6, 4), 0.1 from the
        shares; client 3 must join group 1, (3, 5); client 4 makes it (5, 5).
        """
        assert balanced_groups(self.COUNTS, 2, 1.5) == [[0, 3], [1, 2, 4]]
        assert balanced_groups(self.COUNTS, 2, 2.0) == [[0, 2], [1, 3, 4]]
        reports = group_report(self.COUNTS, [[0, 2], [1, 3, 4]])
        assert [(report["clients"], report["examples"]) for report in reports] == [(2, 10), (3, 10)]
        assert [report["distance"] for report in reports] == pytest.approx([0.1, 0.1])

    @pytest.mark.parametrize("alpha", [0.1, 1.0])
    @pytest.mark.parametrize(("groups", "balance"), [(2, "11/10"), (3, "3/2"), (5, "2"), (1, "1"), (4, "1")])
    def test_equals_the_slow_implementation(self, alpha: float, groups: int, balance: str) -> None:
        for seed in range(8):
            counts = draw(seed, 17, (0, 9), alpha=alpha)
            expected = slow_groups(counts.tolist(), groups, Fraction(balance))
            assert balanced_groups(counts, groups, float(Fraction(balance))) == expected

    def test_the_balance_itself_is_allowed(self) -> None:
        """1.15 times 100 is slightly below 115 in floating point, but 5 may join 110."""
        assert 1.15 * 100 < 115
        assert balanced_groups(np.array([[110, 0], [0, 100], [0, 5]]), 2, 1.15) == [[0, 2], [1]]
        assert balanced_groups(np.array([[110, 0], [0, 100], [0, 6]]), 2, 1.15) == [[0], [1, 2]]

    def test_no_group_is_empty_if_clients_have_no_examples(self) -> None:
        counts = np.array([[0, 0], [3, 1], [0, 0], [0, 0]])
        groups = balanced_groups(counts, 3)
        assert groups == [[1], [0, 3], [2]]
        assert [report["distance"] for report in group_report(counts, groups)] == [0, 2, 2]
        assert balanced_groups(np.zeros((4, 2), dtype=int), 2) == [[0, 2], [1, 3]]

    def test_equal_distances_go_to_the_lower_number(self) -> None:
        """Rounding errors of 0.3 and 0.7 must not decide."""
        counts = np.array([[3, 7]] * 9)
        assert balanced_groups(counts, 3, 1.0) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_random_groups_are_equal_in_size_and_follow_the_generator() -> None:
    first, same_seed, other_seed = (random_groups(23, 4, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert sorted(map(len, first)) == [5, 6, 6, 6]
    assert sorted(client for group in first for client in group) == list(range(23))
    assert all(group == sorted(group) for group in first)
    assert first == same_seed != other_seed
