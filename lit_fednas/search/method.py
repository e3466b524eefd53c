"""Search methods, architectures out and scores in: NSGA-II, evolution, random and exhaustive search, genotypes."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias, cast

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2 as PymooNSGA2
from pymoo.core.duplicate import DuplicateElimination
from pymoo.core.evaluator import Evaluator
from pymoo.core.mutation import Mutation
from pymoo.core.population import Population
from pymoo.core.problem import Problem
from pymoo.core.termination import NoTermination
from pymoo.operators.crossover.ux import UniformCrossover
from pymoo.problems.static import StaticProblem
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.parts import Part
from lit_fednas.ranges import PositiveInt, PositiveShare, Range, UnitInterval, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.supernets import CellSupernet

_TRIES = 100  # per child, until one is new


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


@checked("search.method")
@dataclass(frozen=True)
class RandomSearch(SearchMethod):
    """Distinct architectures of the tier, drawn at random: the baseline that every other method must beat.

    It begins with the smallest and the largest architecture and those of the run's evaluation that fit the tier.

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
                f"search.method: {space.size:,} architectures exceed the limit, {self.limit:,}; raise it, or use NSGA2"
            )
        yield [arch for arch in space.each() if feasible.fits(arch)]


@dataclass(frozen=True)
class DeriveGenotype(SearchMethod, Part):
    """Proposes the genotype derived from the supernet's architecture parameters, if it fits the tier.

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


@checked("search.method")
@dataclass(frozen=True)
class Evolution(SearchMethod):
    """Evolves one population towards accuracy within the tier (SuperFed, App. I).

    The paper searches as CompOFA (Sahni et al., 2021), which searches as once-for-all (Cai et al., 2020), whose code
    the defaults are from. Parents, the fittest of a generation, stay; the others of the next are mutants of a parent,
    or take each gene from one of two.

    Args:
        population: Architectures per generation.
        parent_share: The share of a generation that are parents of the next.
        mutation_share: The share of the children that are mutants; the others are crossed.
        mutation_rate: The probability with which a mutant draws a gene anew.
    """

    population: AtLeastTwo = 100
    parent_share: PositiveShare = 0.25
    mutation_share: PositiveShare = 0.5
    mutation_rate: PositiveShare = 0.1

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        known: set[Any] = set()
        parents: list[Score] = []
        proposed = feasible.distinct(known, self.population, rng)
        while proposed:
            scores = yield proposed
            fittest = sorted([*parents, *scores], key=lambda score: (score.error, score.cost))
            parents = fittest[: max(1, round(self.parent_share * self.population))]
            proposed = self._children([parent.arch for parent in parents], feasible, known, rng)

    def _children(self, parents: list[Any], feasible: Feasible, known: set[Any], rng: np.random.Generator) -> list[Any]:
        space = feasible.space
        mutants = round(self.mutation_share * self.population)
        children = []

        def parent() -> Any:
            return parents[int(rng.integers(len(parents)))]

        for number in range(self.population):
            for _ in range(_TRIES):
                if number < mutants:
                    genes = space.encode(space.mutate(parent(), rng, self.mutation_rate))
                else:
                    pair = [space.encode(parent()) for _ in range(2)]
                    takes = rng.integers(2, size=len(pair[0]))
                    genes = tuple(pair[take][gene] for gene, take in enumerate(takes))
                child = space.decode(feasible.repaired(genes, rng))
                if child not in known:
                    known.add(child)
                    children.append(child)
                    break
        return children or feasible.distinct(known, self.population, rng)


@checked("search.method")
@dataclass(frozen=True)
class NSGA2(SearchMethod):
    """Trades error against the objective cost, within a tier (FedorAS, section 3.2, App. E.5), on pymoo.

    NSGA-II of Deb et al. (2002): genes are crossed uniformly and drawn anew when mutated. Infeasible architectures are
    repaired before evaluation (:meth:`Feasible.repaired`); none is proposed twice.

    Args:
        population: Architectures that survive (FedorAS: 128).
        sample: New architectures per generation (FedorAS: 64).
        crossover_rate: Share of pairs that are crossed; the others are passed on as they are, and mutated.
        mutation_rate: With what probability a gene is drawn anew; one in the number of genes if not given.

    Raises:
        ConfigError: A number is out of range.
    """

    population: AtLeastTwo = 128
    sample: PositiveInt = 64
    crossover_rate: UnitInterval = 0.9
    mutation_rate: UnitInterval | None = None

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        genes = len(feasible.space.cardinalities)
        problem = Problem(n_var=genes, n_obj=2, xl=0, xu=np.array(feasible.space.cardinalities) - 1, vtype=int)
        tier = _Tier(feasible)
        algorithm = _Algorithm(
            pop_size=self.population,
            n_offsprings=self.sample,
            sampling=tier.sample,
            crossover=UniformCrossover(prob=self.crossover_rate),
            mutation=_RedrawGenes(prob_var=1 / genes if self.mutation_rate is None else self.mutation_rate),
            repair=tier.repair,
            eliminate_duplicates=tier,
        )
        algorithm.setup(problem, seed=int(rng.integers(2**31)), termination=NoTermination())
        while (asked := algorithm.ask()) is not None:
            tier.add(asked)
            scores = yield tier.archs(asked)
            objectives = np.array([[score.error, score.cost] for score in scores])
            Evaluator().eval(StaticProblem(problem, F=objectives), asked)
            algorithm.tell(infills=asked)


class _Algorithm(PymooNSGA2):
    """pymoo's algorithm, but a generation for which mating finds too little is filled up from the tier."""

    def _infill(self) -> Any:
        children = self.mating.do(
            self.problem, self.pop, self.n_offsprings, algorithm=self, random_state=self.random_state
        )
        missing = self.n_offsprings - len(children)
        if missing:
            self.eliminate_duplicates.add(children)
            fresh = self.initialization.sampling(self.problem, missing, random_state=self.random_state)
            children = Population.merge(children, fresh)
        return children if len(children) else None


class _RedrawGenes(Mutation):
    """Draws each gene anew with some probability."""

    def _do(self, problem: Any, X: np.ndarray, *args: Any, random_state: Any = None, **kwargs: Any) -> np.ndarray:
        drawn = random_state.integers(problem.xl, problem.xu + 1, size=X.shape)
        return np.where(random_state.random(X.shape) < self.get_prob_var(problem), drawn, X)


class _Tier(DuplicateElimination):
    """The architectures of a tier as pymoo's sampling and repair; refuses what was proposed in any generation."""

    def __init__(self, feasible: Feasible) -> None:
        super().__init__()
        self.feasible = feasible
        self.proposed: set[Any] = set()

    def archs(self, population: Any) -> list[Any]:
        return [self.feasible.space.decode(individual.X.tolist()) for individual in population]

    def add(self, population: Any) -> None:
        self.proposed.update(self.archs(population))

    def sample(self, problem: Any, count: int, random_state: Any, **kwargs: Any) -> Any:
        drawn = self.feasible.distinct(set(self.proposed), count, random_state)
        genes = [self.feasible.space.encode(arch) for arch in drawn]
        return Population.new("X", np.array(genes, dtype=int).reshape(len(genes), problem.n_var))

    def repair(self, problem: Any, population: Any, random_state: Any, **kwargs: Any) -> Any:
        for individual in population:
            individual.X = np.array(self.feasible.repaired(individual.X.tolist(), random_state), dtype=int)
        return population

    def _do(self, pop: Any, other: Any, is_duplicate: np.ndarray) -> np.ndarray:
        seen = set(self.proposed if other is None else self.archs(other))
        for number, arch in enumerate(self.archs(pop)):
            is_duplicate[number] = arch in seen
            seen.add(arch)
        return is_duplicate
