import math

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ConstantRate, CosineRate, MilestoneRate, StepRate


def test_constant() -> None:
    assert [ConstantRate().factor(t, -1) for t in range(3)] == [1.0] * 3


def test_cosine_by_hand() -> None:
    root = math.sqrt(0.5)
    expected = [1.0, (1 + root) / 2, 0.5, (1 - root) / 2, 0.0]
    assert [CosineRate().factor(t, 5) for t in range(5)] == pytest.approx(expected)
    assert [CosineRate(0.2).factor(t, 3) for t in range(3)] == pytest.approx([1.0, 0.6, 0.2])


def test_cosine_at_its_edges() -> None:
    assert CosineRate().factor(0, 1) == 1.0
    assert CosineRate(0.1).factor(9, 5) == pytest.approx(0.1)  # beyond the end it stays
    with pytest.raises(ConfigError, match="max_rounds"):
        CosineRate().factor(0, -1)


def test_step_by_hand() -> None:
    schedule = StepRate(every=3, gamma=0.1)
    assert [schedule.factor(t, -1) for t in range(7)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01])
    assert StepRate(every=1).factor(1, -1) == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="every"):
        StepRate(every=0)


def test_milestones_by_hand() -> None:
    """FedorAS fine-tunes 100 rounds, and trains from scratch 500, with steps at 50 and 75, and at 250 and 375."""
    for rounds, steps in ((100, (50, 75)), (500, (250, 375))):
        factors = [MilestoneRate().factor(t, rounds) for t in range(rounds)]
        assert factors == pytest.approx([0.1 ** sum(t >= step for step in steps) for t in range(rounds)])
    assert [MilestoneRate([0.55]).factor(t, 100) for t in (54, 55)] == [1.0, 0.1]
    with pytest.raises(ConfigError, match="max_rounds"):
        MilestoneRate().factor(0, -1)
    with pytest.raises(ConfigError, match="milestones"):
        MilestoneRate([0.5, 1.5])
