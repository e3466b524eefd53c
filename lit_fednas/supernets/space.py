"""The architectures that a supernet holds: bounds, sampling, mutation, integer encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError

A = TypeVar("A")

#: The name of the label set of the data's own classes.
OWN = "own"


class SearchSpace(ABC, Generic[A]):
    """A family of architectures, each a vector of integers (genes).

    A gene is the place of an architecture's choice among the possible ones. A subclass says how genes and
    architectures correspond; sampling and mutation then follow. Architectures are small hashable values. Two gene
    vectors may mean the same network (the ratio of a block that is absent); :meth:`decode` gives both the same,
    canonical, architecture.

    Attributes:
        choices: For each gene, the values that it chooses from.
        labels: The label set of the architectures that are drawn and decoded (``lit_fednas.supernets.labels``).
    """

    choices: Sequence[Sequence[Any]]
    labels: str = OWN

    @abstractmethod
    def decode(self, genes: Sequence[int]) -> A:
        """Returns the canonical architecture of a gene vector."""

    @abstractmethod
    def encode(self, arch: A) -> tuple[int, ...]:
        """Returns a gene vector of an architecture; the inverse of :meth:`decode`.

        Raises:
            ConfigError: The architecture is not in the space.
        """

    @property
    @abstractmethod
    def smallest(self) -> A:
        """The architecture of least cost."""

    @property
    @abstractmethod
    def largest(self) -> A:
        """The architecture of greatest cost."""

    @property
    def superset(self) -> A:
        """The architecture that holds all weights: the largest one, unless architectures do not nest."""
        return self.largest

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of distinct networks."""

    @abstractmethod
    def parse(self, text: Any) -> A:
        """Reads an architecture as configurations and records write it.

        Args:
            text: ``str(arch)``, its JSON value, or the architecture itself.

        Raises:
            ConfigError: It cannot be read, or is not in the space.
        """

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """For each gene, the number of its values; they are 0 to n - 1."""
        return tuple(len(values) for values in self.choices)

    def chosen(self, arch: A) -> tuple[Any, ...]:
        """Returns what an architecture has chosen, gene by gene."""
        return tuple(values[gene] for values, gene in zip(self.choices, self.encode(arch), strict=True))

    def each(self) -> Iterator[A]:
        """Yields every architecture once, in the order of their genes."""
        yield from dict.fromkeys(self.decode(genes) for genes in product(*map(range, self.cardinalities)))

    def sample(self, rng: np.random.Generator) -> A:
        """Draws every gene uniformly and independently."""
        return self.decode([int(rng.integers(n)) for n in self.cardinalities])

    def mutate(self, arch: A, rng: np.random.Generator, rate: float) -> A:
        """Redraws each gene with probability ``rate``."""
        genes = self.encode(arch)
        draws = [int(rng.integers(n)) for n in self.cardinalities]
        redrawn = rng.random(len(genes)) < rate
        return self.decode([new if take else old for old, new, take in zip(genes, draws, redrawn, strict=True)])

    def named(self, text: Any) -> A:
        """Like :meth:`parse`, and knows the words ``smallest`` and ``largest``."""
        if text == "smallest":
            return self.smallest
        if text == "largest":
            return self.largest
        return self.parse(text)


class Ladder(SearchSpace[A]):
    """Architectures in a row, from the cheapest to the most expensive: one gene, the position in the row.

    A subclass may know further architectures, which clients train but which are not results of a search:
    :meth:`parse` and :meth:`validate` accept them, :meth:`encode` refuses them.

    Args:
        rungs: The row.

    Attributes:
        rungs: The row.
        refusal: What :meth:`encode` says of an architecture that is known but not in the row.

    Example:
        >>> space = Ladder([8, 16, 32])
        >>> space.smallest, space.largest, space.parse("16"), space.encode(16)
        (8, 32, 16, (1,))
    """

    refusal = "is not one to search"

    def __init__(self, rungs: Sequence[A]) -> None:
        self.rungs = tuple(rungs)
        self.choices = (self.rungs,)

    def validate(self, arch: A) -> None:
        """Validates an architecture.

        Raises:
            ConfigError: It is neither in the row nor otherwise known.
        """
        if arch not in self.rungs:
            raise ConfigError(f"architecture: {arch!r} is unknown; choose from {', '.join(map(str, self.rungs))}")

    @override
    def parse(self, text: Any) -> A:
        by_text = {str(rung): rung for rung in self.rungs}
        arch = by_text.get(str(text), text)
        self.validate(arch)
        return arch

    @override
    def decode(self, genes: Sequence[int]) -> A:
        (position,) = genes
        return self.rungs[position]

    @override
    def encode(self, arch: A) -> tuple[int, ...]:
        self.validate(arch)
        if arch not in self.rungs:
            raise ConfigError(f"architecture {arch}: {self.refusal}")
        return (self.rungs.index(arch),)

    @property
    @override
    def smallest(self) -> A:
        return self.rungs[0]

    @property
    @override
    def largest(self) -> A:
        return self.rungs[-1]

    @property
    @override
    def size(self) -> int:
        return len(self.rungs)
