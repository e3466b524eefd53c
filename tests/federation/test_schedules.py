from __future__ import annotations

import math

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ConstantRate, CosineRate, MilestoneRate, StepRate

ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("schedule", "rounds", "factors"),
    [
        (ConstantRate(), -1, [1.0] * 3),
        (CosineRate(), 5, [1.0, (1 + ROOT) / 2, 0.5, (1 - ROOT) / 2, 0.0]),
        (CosineRate(0.2), 3, [1.0, 0.6, 0.2, 0.2]),  # beyond the end it stays
        (CosineRate(), 1, [1.0]),
        (StepRate(every=3, gamma=0.1), -1, [1, 1, 1, 0.1, 0.1, 0.1, 0.01]),
        # FedorAS fine-tunes 100 rounds, and trains from scratch 500, with steps at 50 and 75, and at 250 and 375
        (MilestoneRate(), 100, [1] * 50 + [0.1] * 25 + [0.01] * 25),
        (MilestoneRate(), 500, [1] * 250 + [0.1] * 125 + [0.01] * 125),
        (MilestoneRate([0.55]), 100, [1] * 55 + [0.1] * 45),
    ],
)
def test_factors_by_hand(schedule, rounds, factors) -> None:
    assert [schedule.factor(t, rounds) for t in range(len(factors))] == pytest.approx(factors)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CosineRate().factor(0, -1), "max_rounds"),
        (lambda: MilestoneRate().factor(0, -1), "max_rounds"),
        (lambda: MilestoneRate([0.5, 1.5]), "milestones"),
        (lambda: StepRate(every=0), "every"),
    ],
)
def test_what_cannot_work(make, field) -> None:
    with pytest.raises(ConfigError, match=field):
        make()
