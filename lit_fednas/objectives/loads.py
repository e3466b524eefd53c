"""The share of its budget that a client can spend at the moment (FedorAS, section 3.1: dynamic constraints)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import UnitInterval, checked


class Load(ABC):
    """The share of a client's budget that other work on its device leaves free, batch by batch."""

    @abstractmethod
    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        """Returns the share of the budget that is free, from 0 (only the cheapest path can run) to 1.

        Args:
            round: The round, from 0.
            step: The client's step in this round, from 0.
            rng: The client's own random numbers.
        """


class NoLoad(Load):
    """All of the budget, always."""

    @override
    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        return 1.0


@checked("objective.load")
class RandomLoad(Load):
    """A free share drawn for every batch, uniformly.

    Args:
        least: The lowest free share.
        most: The highest free share.

    Raises:
        ConfigError: A share is out of range, or least is above most.
    """

    def __init__(self, least: UnitInterval = 0.0, most: UnitInterval = 1.0) -> None:
        if least > most:
            raise ConfigError(f"objective.load.least: {least} is above most, {most}; lower it")
        self.least = least
        self.most = most

    @override
    def free(self, round: int, step: int, rng: np.random.Generator) -> float:
        return self.least + (self.most - self.least) * float(rng.random())
