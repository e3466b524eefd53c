"""Budgets and rounds over the iterations: FedNAS, sections 4.3 and 5.1."""

from __future__ import annotations

import pytest

from lit_fednas.callbacks.pruning.iteration import BudgetSchedule, RoundSchedule
from lit_fednas.errors import ConfigError


def test_reductions_do_not_fall_below_the_least() -> None:
    schedule = BudgetSchedule(final=0.15, decay=0.93, least=0.02)
    assert schedule.budget(13, 0.6) == pytest.approx(0.6 - 0.05 * 0.93**12)  # 0.0209
    assert schedule.budget(14, 0.6) == pytest.approx(0.58)  # not 0.0195
    assert schedule.budget(14, 0.16) == 0.15  # the last


def test_budgets_that_never_arrive_are_refused() -> None:
    """0.05 / (1 - 0.93) = 0.714: FedNAS' ConvNet at 25 % cannot be had by decay alone."""
    with pytest.raises(ConfigError, match=r"decay.*0\.714.*0\.75"):
        BudgetSchedule(final=0.25, decay=0.93)
    BudgetSchedule(final=0.29, decay=0.93)
    BudgetSchedule(final=0.25, decay=0.93, least=0.001)
    BudgetSchedule(final=0.01, decay=1.0)


def test_the_papers_rounds() -> None:
    """Section 5.3, Celeba: 1-5 iterations 2 rounds, 6-10: 5, 11-15: 8, more: 10."""
    schedule = RoundSchedule({16: 10, 1: 2, 6: 5, 11: 8})
    assert [schedule.number(t) for t in range(1, 18)] == [2] * 5 + [5] * 5 + [8] * 5 + [10] * 2
