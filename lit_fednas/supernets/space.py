"""The architectures that a supernet holds: bounds, sampling, mutation, integer encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.labels import OWN

A = TypeVar("A")


class SearchSpace(ABC, Generic[A]):
    """A family of architectures, each a vector of integers (genes).

    A subclass says how genes and architectures correspond; sampling and mutation then follow. Architectures
    are small hashable values. Two gene vectors may mean the same network (the ratio of a block that is not
    there); :meth:`decode` gives both the same, canonical, architecture.

    Attributes:
        cardinalities: For each gene, how many values it takes (0 to n - 1).
    """

    cardinalities: tuple[int, ...]

    @abstractmethod
    def decode(self, genes: Sequence[int]) -> A:
        """Returns the canonical architecture of a gene vector."""

    @abstractmethod
    def encode(self, arch: A) -> tuple[int, ...]:
        """Returns a gene vector of an architecture; ``decode`` takes it back.

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
        """What holds all weights: the largest architecture, unless architectures do not nest."""
        return self.largest

    @property
    @abstractmethod
    def size(self) -> int:
        """How many distinct networks the space holds."""

    @abstractmethod
    def parse(self, text: Any) -> A:
        """Reads an architecture as configs and records write it (``str(arch)`` or its JSON value).

        Raises:
            ConfigError: It cannot be read, or is not in the space.
        """

    def each(self) -> Iterator[A]:
        """Yields every architecture once, in the order of their genes."""
        yield from dict.fromkeys(self.decode(genes) for genes in product(*map(range, self.cardinalities)))

    def sample(self, rng: np.random.Generator) -> A:
        """Draws every gene uniformly and independently."""
        return self.decode([int(rng.integers(n)) for n in self.cardinalities])

    def mutate(self, arch: A, rng: np.random.Generator, rate: float) -> A:
        """Draws each gene anew with probability ``rate``."""
        genes = self.encode(arch)
        draws = [int(rng.integers(n)) for n in self.cardinalities]
        chosen = rng.random(len(genes)) < rate
        return self.decode([new if take else old for old, new, take in zip(genes, draws, chosen, strict=True)])

    def layers_with(self, arch: A, operators: Collection[str]) -> int:
        """In how many layers an architecture uses one of these operators; 0 where there are no operators."""
        return 0

    def for_labels(self, labels: str) -> SearchSpace[A]:
        """The same space with another classifier (``lit_fednas.supernets.labels``).

        Raises:
            ConfigError: There is no such label set.
        """
        if labels != OWN:
            raise ConfigError(
                f"labels: {labels!r} is no label set of {type(self).__name__}, which has the data's own"
            )
        return self

    def labels_of(self, arch: A) -> str:
        """The label set that an architecture's classifier tells apart."""
        return OWN

    def named(self, text: Any) -> A:
        """Like :meth:`parse`, and knows the words ``smallest`` and ``largest``."""
        if text == "smallest":
            return self.smallest
        if text == "largest":
            return self.largest
        return self.parse(text)


class Ladder(SearchSpace[A]):
    """Architectures in a row, from the cheapest to the dearest: one gene, the place in the row.

    A subclass may know further architectures, which clients train but which are no results of a search:
    :meth:`parse` and :meth:`validate` accept them, :meth:`encode` refuses them.

    Args:
        rungs: The row.

    Attributes:
        rungs: The row.
        refusal: What :meth:`encode` says of an architecture that is not in the row.
    """

    refusal: ClassVar[str]

    def __init__(self, rungs: Sequence[A]) -> None:
        self.rungs = tuple(rungs)
        self.cardinalities = (len(self.rungs),)

    @abstractmethod
    def validate(self, arch: A) -> None:
        """Raises ``ConfigError`` if it is neither in the row nor otherwise known."""

    def decode(self, genes: Sequence[int]) -> A:
        """The architecture at this place."""
        (place,) = genes
        return self.rungs[place]

    def encode(self, arch: A) -> tuple[int, ...]:
        """Its place."""
        self.validate(arch)
        if arch not in self.rungs:
            raise ConfigError(f"architecture {arch}: {self.refusal}")
        return (self.rungs.index(arch),)

    @property
    def smallest(self) -> A:
        """The first."""
        return self.rungs[0]

    @property
    def largest(self) -> A:
        """The last."""
        return self.rungs[-1]

    @property
    def size(self) -> int:
        """The length of the row."""
        return len(self.rungs)


class SingleArchitecture(SearchSpace[str]):
    """The space of a network that is not a supernet: one architecture, called ``whole``.

    With it federated averaging of an ordinary network is a special case of everything here.

    Example:
        >>> SingleArchitecture().largest
        'whole'
    """

    cardinalities = (1,)

    def decode(self, genes: Sequence[int]) -> str:
        """Returns ``'whole'``."""
        return "whole"

    def encode(self, arch: str) -> tuple[int, ...]:
        """Returns ``(0,)``."""
        self.parse(arch)
        return (0,)

    @property
    def smallest(self) -> str:
        """The one architecture."""
        return "whole"

    @property
    def largest(self) -> str:
        """The one architecture."""
        return "whole"

    @property
    def size(self) -> int:
        """One."""
        return 1

    def parse(self, text: Any) -> str:
        """Returns ``'whole'``, and refuses anything else."""
        if text != "whole":
            raise ConfigError(f"architecture: {text!r} is unknown; this network has one, 'whole'")
        return "whole"
