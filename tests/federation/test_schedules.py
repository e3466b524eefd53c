from __future__ import annotations

import math

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import CosineRate, MilestoneRate, StepRate

ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("schedule", "rounds", "factors"),
    [
        (CosineRate(), 5, [1.0, (1 + ROOT) / 2, 0.5, (1 - ROOT) / 2, 0.0]),
        (CosineRate(0.2), 3, [1.0, 0.6, 0.2, 0.2]),  # the last factor stays
        (CosineRate(0.2, rounds=3), 9, [1.0, 0.6, 0.2, 0.2]),  # the run may be longer
        (MilestoneRate(gamma=0.5, rounds=4), -1, [1, 1, 0.5, 0.25, 0.25]),
        (StepRate(every=3, gamma=0.1), -1, [1, 1, 1, 0.1, 0.1, 0.1, 0.01]),
        # FedorAS fine-tunes 100 rounds, with steps at 50 and 75
        (MilestoneRate(), 100, [1] * 50 + [0.1] * 25 + [0.01] * 25),
    ],
)
def test_factors_by_hand(schedule, rounds, factors) -> None:
    assert [schedule.factor(t, rounds) for t in range(len(factors))] == pytest.approx(factors)


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [
        (CosineRate(), 0.5, 0.5),
        (CosineRate(0.2), 1.25, 0.2),  # the last round may exceed the budget
        (CosineRate(rounds=5), 0.9, (1 + ROOT) / 2),  # the schedule's length takes precedence
        (MilestoneRate(), 0.49, 1.0),
        (MilestoneRate(), 0.75, 0.01),
    ],
)
def test_factors_of_a_budget_by_hand(schedule, progress, factor) -> None:
    """Factors of the second round, without a number of rounds, and with a very large one."""
    assert schedule.factor(1, -1, progress) == pytest.approx(factor)
    assert schedule.factor(1, 1000, progress) == pytest.approx(factor)


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_rounds"):
        CosineRate().factor(0, -1)
