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
        (CosineRate(0.2), 3, [1.0, 0.6, 0.2, 0.2]),  # beyond the end it stays
        (CosineRate(0.2, rounds=3), 9, [1.0, 0.6, 0.2, 0.2]),  # also in a longer run
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
        (CosineRate(0.2), 1.25, 0.2),  # the round in which the budget was spent went beyond it
        (CosineRate(rounds=5), 0.9, (1 + ROOT) / 2),  # its own length counts
        (MilestoneRate(), 0.49, 1.0),
        (MilestoneRate(), 0.75, 0.01),
    ],
)
def test_factors_of_a_budget_by_hand(schedule, progress, factor) -> None:
    """In the second round; without a number of rounds, and with one that is further away."""
    assert schedule.factor(1, -1, progress) == pytest.approx(factor)
    assert schedule.factor(1, 1000, progress) == pytest.approx(factor)


def test_a_run_without_end_has_no_middle() -> None:
    with pytest.raises(ConfigError, match="max_rounds"):
        CosineRate().factor(0, -1)
