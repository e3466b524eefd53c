"""What a search method is: proposals out, scores in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from lit_fednas.search.feasible import Feasible


@dataclass(frozen=True)
class Score:
    """How an architecture did; less is better in both.

    Attributes:
        arch: The architecture.
        error: One minus the accuracy, or the loss.
        cost: The objective cost.
    """

    arch: Any
    error: float
    cost: float


Proposals: TypeAlias = Generator[list[Any], list[Score], None]


class SearchMethod(ABC):
    """Finds good architectures of a tier.

    A method is a frozen dataclass of its settings and one generator: it yields a generation of architectures that
    fit the tier and were not yielded before, is sent their scores, and ends when it finds no more. Who drives it
    counts the evaluations and stops when the budget is spent. All random numbers come from ``rng``: a method that
    is started again and gets the same scores proposes the same again, and so a search resumes by replaying it.

    Example:
        >>> class OnlyTheSmallest(SearchMethod):
        ...     def search(self, feasible, rng):
        ...         scores = yield [feasible.space.smallest]
    """

    @abstractmethod
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        """Yields generations of architectures and is sent their scores."""
