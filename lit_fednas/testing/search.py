"""Contract of search methods, in a small space with formulas for costs and errors."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lit_fednas.search import Feasible, Score
from lit_fednas.search.method import SearchMethod
from lit_fednas.supernets import Operators, PathCNN
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.testing.contract import Contract, global_seed
from lit_fednas.tiers import ArchitectureCosts, Tier

OPERATORS = ["conv1", "sep_e1", "mb3_e2", "id"]


class SearchMethodContract(Contract):
    """The contract of search methods for any space; ``instances`` make methods.

    Attributes:
        draws: Whether the method is random, so that another seed proposes other architectures.

    Example:
        >>> from lit_fednas.search import Evolution
        >>> class TestEvolution(SearchMethodContract):
        ...     instances = {"small": lambda: Evolution(population=32)}
    """

    draws: ClassVar[bool] = True

    def check_all_proposals_fit_and_are_distinct(self) -> None:
        """Every proposal is new and within the limits; proposals end only when no architecture remains."""
        for at_most, above in ((1000.0, None), (20.0, None), (25.0, 18.0)):
            proposals = proposed(self.case.make(), toy_feasible(at_most, above), 150)
            fitting = [arch for arch in ToySpace().each() if (above or 0) < toy_cost(arch) <= at_most]
            assert len(proposals) == min(150, len(fitting))
            assert len(set(proposals)) == len(proposals)
            assert set(proposals) <= set(fitting)

    def check_no_proposal_holds_an_unsupported_operator(self) -> None:
        """If a device cannot run the space's bounds, exactly the paths that it can run are proposed."""
        paths = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2], operators=OPERATORS)
        weak = ((("sep_e1", "mb3_e2"), 1.0), (("id", "conv1"), 0.4), (("id", "mb3_e2", "conv1"), 1.0))
        for unsupported, share in weak:
            rest = [name for name in paths.operators if name not in unsupported]
            runnable = [Operators(((a,), (b,), (c,))) for a in rest for b in rest for c in rest]
            macs = sorted(paths.macs(arch) for arch in runnable)
            limit = macs[0] + share * (macs[-1] - macs[0])
            tier = Tier("weak", {"macs": float(limit)}, unsupported=unsupported)
            feasible = Feasible(paths.space, ArchitectureCosts(paths), tier, np.random.default_rng(0))
            assert not feasible.fits(paths.space.smallest) or not feasible.fits(paths.space.largest)
            proposals = proposed(
                self.case.make(), feasible, 64, score=lambda arch: (1 / (1 + len(set(arch.layers))), paths.macs(arch))
            )
            assert set(proposals) == {arch for arch in runnable if paths.macs(arch) <= limit}

    def check_narrow_tiers_are_exhausted_and_end(self) -> None:
        """In a tier of few architectures, each is proposed once, and then the search ends."""
        for at_most in (1.0, 6.0):
            fitting = [arch for arch in ToySpace().each() if toy_cost(arch) <= at_most]
            assert len(fitting) < 40
            proposals = [arch for batch in generations(self.case.make(), toy_feasible(at_most)) for arch in batch]
            assert sorted(proposals) == sorted(fitting)

    def check_equal_seeds_propose_the_same_and_no_global_generator_is_moved(self) -> None:
        """Proposals depend on the seed and the scores alone; no global generator is read or moved."""
        with global_seed(1):
            first, repeated, other = (proposed(self.case.make(), toy_feasible(30.0), 200, seed) for seed in (0, 0, 1))
        assert first == repeated
        assert first != other or not self.draws


class ToySpace(SearchSpace[tuple[int, ...]]):
    """Six genes of four values; every second gene has no effect if the gene before it is 0, like a missing block."""

    choices = (range(4),) * 6
    size = (1 + 3 * 4) ** 3

    @override
    def canonical(self, arch: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if index % 2 and arch[index - 1] == 0 else gene for index, gene in enumerate(arch))


def toy_cost(arch: tuple[int, ...]) -> float:
    """Returns a cost that rises with every gene."""
    return 1.0 + sum((index + 1) * gene for index, gene in enumerate(arch))


def toy_error(arch: tuple[int, ...]) -> float:
    """Returns an error that falls with the cost; some genes help more than they cost, and equal neighbours hurt."""
    worth = sum((6 - index) * gene for index, gene in enumerate(arch))
    clash = sum(arch[index] == arch[index + 1] for index in range(5))
    return 1.0 / (1.0 + worth) + 0.05 * clash


def toy_feasible(at_most: float = 1000.0, above: float | None = None) -> Feasible:
    """Returns the toy space's architectures that fit a tier."""
    tier = Tier("toy", {"macs": at_most}, {} if above is None else {"macs": above})
    costs: Any = SimpleNamespace(  # replaces ``ArchitectureCosts``
        cost=lambda arch, name: {"macs": toy_cost(arch)}[name],
        excess=lambda arch, tier: tier.excess({"macs": toy_cost(arch)}),
    )
    return Feasible(ToySpace(), costs, tier, np.random.default_rng(0))


def toy_score(arch: tuple[int, ...]) -> tuple[float, float]:
    """Returns the error and the cost."""
    return toy_error(arch), toy_cost(arch)


def generations(
    method: SearchMethod, feasible: Feasible, seed: int = 0, score: Callable[[Any], tuple[float, float]] = toy_score
) -> Iterator[list[Any]]:
    """Drives a method with errors and costs, and yields the architectures of each generation."""
    proposals: Any = method.search(feasible, np.random.default_rng(seed))
    scores = None
    with suppress(StopIteration):
        while generation := proposals.send(scores):
            yield generation
            scores = [Score(arch, *score(arch)) for arch in generation]


def proposed(
    method: SearchMethod,
    feasible: Feasible,
    count: int,
    seed: int = 0,
    score: Callable[[Any], tuple[float, float]] = toy_score,
) -> list[Any]:
    """Returns the first architectures that a method proposes."""
    return list(islice(chain.from_iterable(generations(method, feasible, seed, score)), count))
