"""Learning-rate schedules over rounds: factors of the local learning rate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, ShareBelowOne, checked


class RateSchedule(ABC):
    """A factor of the local learning rate for each round; a function of the round alone, so it resumes."""

    @abstractmethod
    def factor(self, round: int, max_rounds: int) -> float:
        """Returns the factor in a round.

        Args:
            round: The round, from 0.
            max_rounds: Rounds of the whole run; -1 if it has no end.

        Raises:
            ConfigError: The schedule needs an end.
        """


class ConstantRate(RateSchedule):
    """The same learning rate throughout.

    Example:
        >>> ConstantRate().factor(7, 10)
        1.0
    """

    @override
    def factor(self, round: int, max_rounds: int) -> float:
        return 1.0


class CosineRate(RateSchedule):
    """Half a cosine from 1 in the first round to ``final`` in the last.

    Args:
        final: The last round's factor.

    Example:
        >>> [round(CosineRate().factor(t, 5), 3) for t in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(self, final: float = 0.0) -> None:
        self.final = final

    @override
    def factor(self, round: int, max_rounds: int) -> float:
        if max_rounds < 1:
            raise ConfigError("client.lr_schedule: CosineRate needs an end; set trainer.max_rounds")
        share = min(1.0, round / max(1, max_rounds - 1))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2


@checked("client.lr_schedule")
class StepRate(RateSchedule):
    """Multiplied by ``gamma`` every so many rounds.

    Args:
        every: Rounds between two steps.
        gamma: The factor of each.

    Example:
        >>> [StepRate(every=2, gamma=0.5).factor(t, 6) for t in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, every: PositiveInt, gamma: float = 0.1) -> None:
        self.every = every
        self.gamma = gamma

    @override
    def factor(self, round: int, max_rounds: int) -> float:
        return float(self.gamma ** (round // self.every))


@checked("client.lr_schedule")
class MilestoneRate(RateSchedule):
    """Multiplied by ``gamma`` once each of these shares of the rounds is over (FedorAS, Tables 10 and 11).

    Args:
        milestones: Shares of all rounds.
        gamma: The factor of each.

    Raises:
        ConfigError: A share is not between 0 and 1.

    Example:
        >>> [round(MilestoneRate().factor(t, 8), 3) for t in (3, 4, 5, 6)]
        [1.0, 0.1, 0.1, 0.01]
    """

    def __init__(self, milestones: Sequence[ShareBelowOne] = (0.5, 0.75), gamma: float = 0.1) -> None:
        self.milestones = milestones
        self.gamma = gamma

    @override
    def factor(self, round: int, max_rounds: int) -> float:
        if max_rounds < 1:
            raise ConfigError("client.lr_schedule: MilestoneRate needs an end; set trainer.max_rounds")
        passed = sum(round + 1e-9 >= share * max_rounds for share in self.milestones)  # 0.55 * 100 is above 55
        return float(self.gamma**passed)
