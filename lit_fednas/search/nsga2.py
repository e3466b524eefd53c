"""FedorAS' search: NSGA-II."""

from dataclasses import dataclass
from typing import Any

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

from lit_fednas.ranges import PositiveInt, UnitInterval, checked
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.method import AtLeastTwo, Proposals, SearchMethod


@checked("search.method")
@dataclass(frozen=True)
class NSGA2(SearchMethod):
    """Minimises error and cost within a tier (FedorAS, section 3.2, App. E.5), on pymoo.

    NSGA-II of Deb et al. (2002), with uniform crossover and mutations that redraw genes. Infeasible architectures are
    repaired before evaluation (:meth:`Feasible.repaired`); none is proposed twice.

    Args:
        population: Architectures that survive (FedorAS: 128).
        sample: New architectures per generation (FedorAS: 64).
        crossover_rate: The share of pairs that are crossed; the others are only mutated.
        mutation_rate: The probability that a gene is redrawn; 1 / number of genes if not given.
    """

    population: AtLeastTwo = 128
    sample: PositiveInt = 64
    crossover_rate: UnitInterval = 0.9
    mutation_rate: UnitInterval | None = None

    @override
    def search(self, feasible: Feasible, rng: np.random.Generator) -> Proposals:
        num_genes = len(feasible.space.cardinalities)
        problem = Problem(n_var=num_genes, n_obj=2, xl=0, xu=np.array(feasible.space.cardinalities) - 1, vtype=int)
        tier = _Tier(feasible)
        algorithm = _Algorithm(
            pop_size=self.population,
            n_offsprings=self.sample,
            sampling=tier.sample,
            crossover=UniformCrossover(prob=self.crossover_rate),
            mutation=_RedrawGenes(prob_var=1 / num_genes if self.mutation_rate is None else self.mutation_rate),
            repair=tier.repair,
            eliminate_duplicates=tier,
        )
        algorithm.setup(problem, seed=int(rng.integers(2**31)), termination=NoTermination())
        while (generation := algorithm.ask()) is not None:
            tier.add(generation)
            scores = yield tier.archs(generation)
            objectives = np.array([[score.error, score.cost] for score in scores])
            Evaluator().eval(StaticProblem(problem, F=objectives), generation)
            algorithm.tell(infills=generation)


class _Algorithm(PymooNSGA2):
    """pymoo's algorithm; if mating finds too few new architectures, samples of the tier complete the generation."""

    def _infill(self) -> Any:
        children = self.mating.do(
            self.problem, self.pop, self.n_offsprings, algorithm=self, random_state=self.random_state
        )
        num_missing = self.n_offsprings - len(children)
        if num_missing:
            self.eliminate_duplicates.add(children)
            samples = self.initialization.sampling(self.problem, num_missing, random_state=self.random_state)
            children = Population.merge(children, samples)
        return children if len(children) else None


class _RedrawGenes(Mutation):
    def _do(self, problem: Any, X: np.ndarray, *args: Any, random_state: Any = None, **kwargs: Any) -> np.ndarray:
        new_genes = random_state.integers(problem.xl, problem.xu + 1, size=X.shape)
        return np.where(random_state.random(X.shape) < self.get_prob_var(problem), new_genes, X)


class _Tier(DuplicateElimination):
    """The architectures of a tier as pymoo's sampling and repair, without those of earlier generations."""

    def __init__(self, feasible: Feasible) -> None:
        super().__init__()
        self.feasible = feasible
        self.proposed: set[Any] = set()

    def archs(self, population: Any) -> list[Any]:
        return [self.feasible.space.decode(individual.X.tolist()) for individual in population]

    def add(self, population: Any) -> None:
        self.proposed.update(self.archs(population))

    def sample(self, problem: Any, count: int, random_state: Any, **kwargs: Any) -> Any:
        archs = self.feasible.distinct(set(self.proposed), count, random_state)
        genes = [self.feasible.space.encode(arch) for arch in archs]
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
