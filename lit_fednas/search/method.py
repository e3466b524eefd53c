"""The contract of search methods (proposals out, scores in); random and exhaustive search, derived genotypes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias, cast

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.parts import Part
from lit_fednas.ranges import PositiveInt, Range, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.supernets import CellSupernet


@dataclass(frozen=True)
class Score:
    """Error and cost of an architecture; less is better in both.

    Attributes:
        arch: The architecture.
        error: One minus the metric where higher is better; else the metric.
        cost: The objective cost.
    """

    arch: Any
    error: float
    cost: float


#: Architectures of a generation, of which some are to survive.
AtLeastTwo = Annotated[int, Range(at_least=2)]
Proposals: TypeAlias = Generator[list[Any], list[Score], None]


class SearchMethod(ABC):
    """Finds good architectures of a tier.

    A method is a frozen dataclass of its settings and one generator: it yields a generation of architectures that
    fit the tier and were not yielded before, is sent their scores, and ends when it finds no more. The caller
    counts the evaluations and stops when the budget is spent. All random numbers come from ``rng``: a method that
    is started again and gets the same scores proposes the same again, and so a search resumes by replaying it.

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


@checked("search.method")
@dataclass(frozen=True)
class RandomSearch(SearchMethod):
    """Distinct architectures of the tier, drawn at random: the baseline that every other method must beat.

    As the evolutionary search, it begins with the smallest and the largest architecture and those of the run's
    evaluation, where the tier affords them.

    Args:
        sample: How many per generation; it changes nothing but how often figures are written.
    """

    sample: PositiveInt = 64

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        known: set[object] = set()
        while drawn := feasible.distinct(known, self.sample, rng):
            yield drawn


@checked("search.method")
@dataclass(frozen=True)
class Exhaustive(SearchMethod):
    """Every architecture of the tier, in the order of its genes: the true front of a small space.

    Args:
        limit: The largest space that is searched.

    Raises:
        ConfigError: The space is larger, once it is known.
    """

    limit: PositiveInt = 20_000

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        space = feasible.space
        if space.size > self.limit:
            raise ConfigError(
                f"search.method: Exhaustive would evaluate {space.size:,} architectures, limit is {self.limit:,}; "
                f"raise search.method.init_args.limit, or use NSGA2"
            )
        yield [arch for arch in space.each() if feasible.fits(arch)]


@dataclass(frozen=True)
class DeriveGenotype(SearchMethod, Part):
    """Proposes the genotype derived from the supernet's architecture parameters, if the tier affords it.

    DARTS' derivation (Liu et al., 2019, section 2.4), as FedNAS' search.

    Raises:
        ConfigError: The supernet has no architecture parameters, once it is known.
    """

    field: ClassVar[str] = "search.method"
    supernet_kind: ClassVar[type] = CellSupernet

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        supernet = feasible.costs.supernet
        self.check_supernet(supernet)
        genotype = cast(CellSupernet, supernet).derived()
        if feasible.fits(genotype):
            yield [genotype]
