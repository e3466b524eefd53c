"""How budgets decrease from iteration to iteration, and how rounds increase (FedNAS, sections 4.3 and 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lit_fednas.errors import ConfigError


@dataclass(frozen=True)
class BudgetSchedule:
    """The budgets of the iterations, as shares of the initial model's resource; arguments as of ``PruneByBudgets``.

    The budget of iteration t, from 1, is the newest model's resource less ``first * decay ** (t - 1)``, NetAdapt's
    rule (section 4: "Res(GM_t) - dR_t"; "we reduce the resource budget by 5% at each iteration with 0.98 decay").
    ``least`` is ours: FedNAS's ConvNet has a decay of 0.93, with which all reductions together are 71 %, and yet
    models of 25 % and 15 % (Table 3).

    Example:
        >>> schedule = BudgetSchedule(final=0.8, first=0.125, decay=0.5)
        >>> schedule.budget(1, 1.0), schedule.budget(2, 0.86)
        (0.875, 0.8)
    """

    final: float
    first: float = 0.05
    decay: float = 0.98
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.least == 0 and self.decay < 1:
            reach = self.first / (1 - self.decay)
            if reach < 1 - self.final:
                raise ConfigError(
                    f"prune_by_budgets.decay: with {self.decay}, and {self.first} in the first iteration, all "
                    f"iterations together reduce the resource by {reach:.3g}, and the budget {self.final} needs "
                    f"{1 - self.final:.3g}; raise decay or first, or set least to the smallest reduction"
                )

    def budget(self, iteration: int, present: float) -> float:
        """Returns the budget of an iteration, from 1; ``present`` is the newest model's share."""
        step = max(self.first * self.decay ** (iteration - 1), self.least)
        return max(present - step, self.final)


@dataclass(frozen=True)
class RoundSchedule:
    """Dynamic round numbers: later iterations have more rounds (section 3.3).

    The paper's for ConvNet are ``{1: 2, 6: 5, 11: 8, 16: 10}``. With 0 rounds candidates are tested, and none is
    trained.

    Example:
        >>> schedule = RoundSchedule({1: 2, 6: 5})
        >>> [schedule.number(iteration) for iteration in (1, 5, 6, 99)]
        [2, 2, 5, 5]
    """

    rounds: Mapping[int, int]

    def __post_init__(self) -> None:
        if 1 not in self.rounds or min(self.rounds) < 1:
            raise ConfigError(
                f"prune_by_budgets.rounds: {dict(self.rounds)} has no number of rounds for iteration 1, or a key "
                f"below 1; give the first iteration of each number of rounds, for instance {{1: 2, 6: 5}}"
            )

    def number(self, iteration: int) -> int:
        """Returns the number of rounds of an iteration, from 1."""
        return self.rounds[max(first for first in self.rounds if first <= iteration)]
