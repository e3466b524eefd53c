"""A space of 4096 architectures whose costs and errors are formulas, so that everything can be enumerated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from lit_fednas.search import Feasible, Score
from lit_fednas.search.method import SearchMethod
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers import Tier


class ToySpace(SearchSpace[tuple[int, ...]]):
    """Six genes of four values; a gene behind one that is 0 means nothing (as a block that is not there)."""

    choices = (range(4),) * 6

    def decode(self, genes):
        kept = list(genes)
        for place in range(1, 6, 2):
            if kept[place - 1] == 0:
                kept[place] = 0
        return tuple(kept)

    def encode(self, arch):
        return tuple(arch)

    @property
    def smallest(self):
        return (0,) * 6

    @property
    def largest(self):
        return (3,) * 6

    @property
    def size(self):
        return (1 + 3 * 4) ** 3

    def parse(self, text):
        return tuple(text)


def toy_cost(arch) -> float:
    return 1.0 + sum((place + 1) * gene for place, gene in enumerate(arch))


def toy_error(arch) -> float:
    """Falls with the cost, but some genes are worth more than they cost and some pairs do not go together."""
    worth = sum((6 - place) * gene for place, gene in enumerate(arch))
    clash = sum(arch[place] == arch[place + 1] for place in range(5))
    return 1.0 / (1.0 + worth) + 0.05 * clash


class ToyCosts:
    """In place of ``ArchitectureCosts``."""

    def cost(self, arch, name):
        assert name == "macs"
        return toy_cost(arch)

    def excess(self, arch, tier):
        return tier.excess({"macs": toy_cost(arch)})


def every_architecture() -> list[tuple[int, ...]]:
    space = ToySpace()
    return list(dict.fromkeys(space.decode(genes) for genes in product(range(4), repeat=6)))


def toy_tier(at_most: float = 1000.0, above: float | None = None) -> Tier:
    return Tier("toy", {"macs": at_most}, {} if above is None else {"macs": above})


def toy_feasible(at_most: float = 1000.0, above: float | None = None, seed: int = 0) -> Feasible:
    tier = toy_tier(at_most, above)
    return Feasible(ToySpace(), ToyCosts(), tier, np.random.default_rng(seed))  # type: ignore[arg-type]


def generations(method: SearchMethod, feasible: Feasible, seed: int = 0) -> Iterator[list[Any]]:
    """Drives a method with the toy's errors."""
    proposals = method.search(feasible, np.random.default_rng(seed))
    try:
        proposed = next(proposals)
        while True:
            yield proposed
            proposed = proposals.send([Score(arch, toy_error(arch), toy_cost(arch)) for arch in proposed])
    except StopIteration:
        return


def proposed(method: SearchMethod, feasible: Feasible, count: int, seed: int = 0) -> list[Any]:
    """The first architectures that a method proposes."""
    found: list[Any] = []
    for generation in generations(method, feasible, seed):
        found += generation
        if len(found) >= count:
            break
    return found[:count]
