"""How much of its budget a client can spend at the moment (FedorAS, section 3.1: dynamic constraints)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from lit_fednas.errors import ConfigError


class Load(ABC):
    """What else a client's device is busy with, batch by batch."""

    @abstractmethod
    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        """The share of the budget that is free, from 0 (only the cheapest path can run) to 1.

        Args:
            round: The round, from 0.
            step: The client's step in this round, from 0.
            rng: The client's own random numbers.
        """


class NoLoad(Load):
    """All of the budget, always."""

    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        """Returns 1."""
        return 1.0


class ScheduledLoad(Load):
    """The same course in every round.

    Args:
        shares: Free shares, one after the other; they start again when all were used.
        every: Batches that each holds for.

    Example:
        >>> load = ScheduledLoad([1.0, 0.5], every=2)
        >>> [load.free(0, step, None) for step in range(5)]
        [1.0, 1.0, 0.5, 0.5, 1.0]
    """

    def __init__(self, shares: Sequence[float], every: int = 1) -> None:
        if not shares or min(shares) < 0 or max(shares) > 1 or every < 1:
            raise ConfigError(
                f"objective.load: shares {list(shares)} must be from 0 to 1, and every {every} at least 1 batch"
            )
        self.shares = list(shares)
        self.every = every

    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        """Looks it up."""
        return self.shares[step // self.every % len(self.shares)]


class RandomLoad(Load):
    """A free share drawn for every batch, uniformly.

    Args:
        least: The least free share.
        most: The greatest.
    """

    def __init__(self, least: float = 0.0, most: float = 1.0) -> None:
        if not 0 <= least <= most <= 1:
            raise ConfigError(
                f"objective.load: least {least} and most {most} must be shares, least not above most"
            )
        self.least = least
        self.most = most

    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        """Draws it."""
        return self.least + (self.most - self.least) * float(rng.random())
