"""The contract of search methods: architectures out, scores in."""

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
    """Error and cost of an architecture; less is better in both."""

    arch: Any
    error: float  # one minus the metric where higher is better; else the metric
    cost: float  # the objective cost


#: Architectures of a generation, of which some are to survive.
AtLeastTwo = Annotated[int, Range(at_least=2)]
Proposals: TypeAlias = Generator[list[Any], list[Score], None]


class SearchMethod(ABC):
    """Finds good architectures of a tier.

    A method is a frozen dataclass of its settings and one generator: it yields generations of architectures that fit
    the tier and were not yielded before, is sent their scores, and ends when it finds no more. The caller stops when
    the budget is spent. All random numbers come from ``rng``, so a search resumes by replaying the method.

    Example:
        >>> class OnlyTheSmallest(SearchMethod):
        ...     def search(self, feasible, rng):
        ...         scores = yield [feasible.space.smallest]
    """

    @abstractmethod
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        """Yields generations of architectures and is sent their scores.

        Args:
            feasible: The architectures of the tier.
            rng: Random numbers.
        """

    def plan(self, feasible: Feasible, rng: np.random.Generator) -> Any:
        """Returns the best architecture without an evaluation (``search.evaluations`` of 0).

        Raises:
            ConfigError: The method cannot tell without one, or refuses all architectures.
        """
        raise ConfigError(f"search.evaluations: 0 is too few for {type(self).__name__}; give more, or use ProxySearch")
