"""A small space whose costs and errors are formulas, so that everything can be enumerated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.search import Feasible, Score
from lit_fednas.search.method import SearchMethod
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers import Tier


class ToySpace(SearchSpace[tuple[int, ...]]):
    """Six genes of four values; a gene behind one that is 0 means nothing (as a block that is not there)."""

    choices = (range(4),) * 6

    @override
    def decode(self, genes: Sequence[int]) -> tuple[int, ...]:
        kept = list(genes)
        for place in range(1, 6, 2):
            if kept[place - 1] == 0:
                kept[place] = 0
        return tuple(kept)

    @override
    def encode(self, arch: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(arch)

    @property
    @override
    def smallest(self) -> tuple[int, ...]:
        return (0,) * 6

    @property
    @override
    def largest(self) -> tuple[int, ...]:
        return (3,) * 6

    @property
    @override
    def size(self) -> int:
        return (1 + 3 * 4) ** 3

    @override
    def parse(self, text: object) -> tuple[int, ...]:
        return tuple(int(gene) for gene in str(text).strip("()").split(","))


def toy_cost(arch: tuple[int, ...]) -> float:
    """Returns the cost, which rises with every gene."""
    return 1.0 + sum((place + 1) * gene for place, gene in enumerate(arch))


def toy_error(arch: tuple[int, ...]) -> float:
    """Returns the error: it falls with the cost, but some genes help more than they cost and some pairs hurt."""
    worth = sum((6 - place) * gene for place, gene in enumerate(arch))
    clash = sum(arch[place] == arch[place + 1] for place in range(5))
    return 1.0 / (1.0 + worth) + 0.05 * clash


class ToyCosts:
    """In place of ``ArchitectureCosts``."""

    def cost(self, arch: tuple[int, ...], name: str) -> float:
        """Returns the toy's cost."""
        assert name == "macs"
        return toy_cost(arch)

    def excess(self, arch: tuple[int, ...], tier: Tier) -> float:
        """Returns by how much the toy's cost exceeds a tier's limits."""
        return tier.excess({"macs": toy_cost(arch)})


def every_architecture() -> list[tuple[int, ...]]:
    """Returns all architectures of the space, each once."""
    space = ToySpace()
    return list(dict.fromkeys(space.decode(genes) for genes in product(range(4), repeat=6)))


def toy_tier(at_most: float = 1000.0, above: float | None = None) -> Tier:
    """Returns a tier that limits the toy's cost."""
    return Tier("toy", {"macs": at_most}, {} if above is None else {"macs": above})


def toy_feasible(at_most: float = 1000.0, above: float | None = None, seed: int = 0) -> Feasible:
    """Returns the toy's architectures that fit a tier."""
    tier = toy_tier(at_most, above)
    return Feasible(ToySpace(), ToyCosts(), tier, np.random.default_rng(seed))  # type: ignore[arg-type]


def generations(method: SearchMethod, feasible: Feasible, seed: int = 0) -> Iterator[list[Any]]:
    """Drives a method with the toy's errors.

    Yields:
        The architectures of each generation.
    """
    proposals = method.search(feasible, np.random.default_rng(seed))
    try:
        proposed = next(proposals)
        while True:
            yield proposed
            proposed = proposals.send([Score(arch, toy_error(arch), toy_cost(arch)) for arch in proposed])
    except StopIteration:
        return


def proposed(method: SearchMethod, feasible: Feasible, count: int, seed: int = 0) -> list[Any]:
    """Returns the first architectures that a method proposes."""
    found: list[Any] = []
    for generation in generations(method, feasible, seed):
        found += generation
        if len(found) >= count:
            break
    return found[:count]
