"""What every search method promises."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np

from lit_fednas.search import Feasible, Score
from lit_fednas.supernets import Operators, PathCNN
from lit_fednas.testing.contract import Contract, global_generators
from lit_fednas.testing.toy import every_architecture, generations, proposed, toy_cost, toy_feasible
from lit_fednas.tiers import ArchitectureCosts, Tier

OPERATORS = ["conv1", "sep_e1", "mb3_e2", "id"]


@functools.cache
def _paths() -> PathCNN:
    return PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2], operators=OPERATORS)


class SearchMethodContract(Contract):
    """The contract of search methods for any space; ``instances`` make methods.

    Attributes:
        draws: Whether the method draws: another seed then proposes other architectures.

    Example:
        >>> from lit_fednas.search import Evolution
        >>> class TestEvolution(SearchMethodContract):
        ...     instances = {"small": lambda: Evolution(population=32)}
    """

    draws: ClassVar[bool] = True

    def check_all_proposals_fit_and_are_distinct(self) -> None:
        """Every proposal is within the tier's limits and new, and there are as many as are asked for and exist."""
        for at_most, above in ((1000.0, None), (20.0, None), (25.0, 18.0)):
            found = proposed(self.case.make(), toy_feasible(at_most, above), 150)
            fitting = [arch for arch in every_architecture() if (above or 0) < toy_cost(arch) <= at_most]
            assert len(found) == min(150, len(fitting))
            assert len(set(found)) == len(found)
            assert set(found) <= set(fitting)

    def check_no_proposal_holds_an_unsupported_operator(self) -> None:
        """All paths that a device can run are proposed, and no other, where it cannot run the space's bounds."""
        paths = _paths()
        weak = ((("sep_e1", "mb3_e2"), 1.0), (("id", "conv1"), 0.4), (("id", "mb3_e2", "conv1"), 1.0))
        for unsupported, share in weak:
            rest = [name for name in paths.operators if name not in unsupported]
            runnable = [Operators(((a,), (b,), (c,))) for a in rest for b in rest for c in rest]
            macs = sorted(paths.macs(arch) for arch in runnable)
            limit = macs[0] + share * (macs[-1] - macs[0])
            tier = Tier("weak", {"macs": float(limit)}, unsupported=unsupported)
            feasible = Feasible(paths.space, ArchitectureCosts(paths), tier, np.random.default_rng(0))
            assert not feasible.fits(paths.space.smallest) or not feasible.fits(paths.space.largest)
            proposals = self.case.make().search(feasible, np.random.default_rng(0))
            found: list[Any] = []
            generation = next(proposals, None)
            while generation and len(found) < 64:
                found += generation
                errors = [1 / (1 + len(set(arch.layers))) for arch in generation]
                scores = [Score(arch, error, paths.macs(arch)) for arch, error in zip(generation, errors, strict=True)]
                try:
                    generation = proposals.send(scores)
                except StopIteration:
                    break
            assert set(found) == {arch for arch in runnable if paths.macs(arch) <= limit}

    def check_narrow_tiers_are_exhausted_and_end(self) -> None:
        """A tier of few architectures is gone through, each once, and then the search ends."""
        for at_most in (1.0, 6.0):
            fitting = {arch for arch in every_architecture() if toy_cost(arch) <= at_most}
            assert len(fitting) < 40
            found = [arch for batch in generations(self.case.make(), toy_feasible(at_most)) for arch in batch]
            assert sorted(found) == sorted(fitting)

    def check_equal_seeds_propose_the_same_and_no_global_generator_is_moved(self) -> None:
        """Proposals are a function of the seed and the scores; no global generator is read or moved."""
        method = self.case.make()
        np.random.seed(1)  # noqa: NPY002
        before = global_generators()
        first = proposed(method, toy_feasible(30.0), 200)
        assert first == proposed(method, toy_feasible(30.0), 200)
        assert global_generators() == before
        if self.draws:
            assert first != proposed(method, toy_feasible(30.0), 200, seed=1)
