"""The contract of search methods: they propose architectures and receive scores."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Range
from lit_fednas.search.feasible import Feasible


@dataclass(frozen=True)
class Score:
    """Error and cost of an architecture; lower is better for both."""

    arch: Any
    error: float  # one minus the metric if higher is better, else the metric
    cost: float  # the objective cost


#: Size of a generation from which some architectures survive.
AtLeastTwo = Annotated[int, Range(at_least=2)]
Proposals: TypeAlias = Generator[list[Any], list[Score], None]


class SearchMethod(ABC):
    """Finds good architectures of a tier.

    A method is a frozen dataclass of its settings with one generator. It yields generations of new architectures that
    fit the tier, receives their scores, and ends when it finds no more. The caller stops when the budget is spent. All
    random numbers come from ``rng``, so a search resumes by replaying the method.

    Example:
        >>> class OnlyTheSmallest(SearchMethod):
        ...     def search(self, feasible, rng):
        ...         scores = yield [feasible.space.smallest]
    """

    @abstractmethod
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        """Yields generations of architectures of the tier and receives their scores."""

    def plan(self, feasible: Feasible, rng: np.random.Generator) -> Any:
        """Returns the best architecture without an evaluation (``search.evaluations`` of 0).

        Raises:
            ConfigError: The method needs evaluations, or refuses all architectures.
        """
        raise ConfigError(f"search.evaluations: 0 is too few for {type(self).__name__}; give more, or use ProxySearch")
