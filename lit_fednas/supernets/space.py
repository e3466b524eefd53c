"""The architectures that a supernet holds: bounds, sampling, mutation, integer encoding."""

from ast import literal_eval
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import contains
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError

A = TypeVar("A")
S = TypeVar("S", bound="Subset")


class SearchSpace(Generic[A]):
    """A family of architectures, each a vector of integers (genes).

    A gene is the index of an architecture's choice among the possible ones. Architectures are small hashable values:
    here tuples of what is chosen for each gene. A subclass with other ones overrides :meth:`from_values`,
    :meth:`values_of`, :meth:`read` and :meth:`validate`; where several vectors mean one network, :meth:`canonical` and
    :attr:`size`. It may know further architectures, which clients train but which are not results of a search:
    :meth:`read` and :meth:`validate` accept them, and :meth:`values_of` has ``None`` for them.

    Attributes:
        choices: For each gene, the values to choose from.
        kind: The type of the architectures, or several types.
        refusal: Why :meth:`encode` refuses further architectures.

    Example:
        >>> class DepthAndWidth(SearchSpace[tuple[int, int]]):
        ...     choices = ((1, 2, 3), (16, 32))
        >>> space = DepthAndWidth()
        >>> space.smallest, space.decode([1, 1]), space.encode((3, 16)), space.parse("(2, 32)")
        ((1, 16), (2, 32), (2, 0), (2, 32))
    """

    choices: Sequence[Sequence[Any]]
    kind: type | tuple[type, ...] = tuple
    refusal: ClassVar[str] = "is not one to search"

    def from_values(self, values: list[Any]) -> A:
        """Returns the architecture of a chosen value for each gene."""
        return tuple(values)  # type: ignore[return-value]

    def values_of(self, arch: A) -> Sequence[Any] | None:
        """Returns the chosen value for each gene; ``None`` of an architecture that is not one to search."""
        return arch  # type: ignore[return-value]

    def read(self, text: Any) -> A:
        """Reads ``str(arch)`` or its JSON value; raises ``ConfigError`` if it cannot be read."""
        try:
            return tuple(literal_eval(str(text)))  # type: ignore[return-value]
        except (SyntaxError, TypeError, ValueError):
            raise ConfigError(f"architecture: {text!r} cannot be read; write it as '{self.largest}'") from None

    def validate(self, arch: A) -> None:
        """Raises ``ConfigError`` if an architecture is not in the space."""
        values = self.values_of(arch) or ()
        if len(values) != len(self.choices) or not all(map(contains, self.choices, values)):
            raise ConfigError(f"architecture {arch}: must be one of each of {', '.join(map(str, self.choices))}")

    def canonical(self, arch: A) -> A:
        """Returns the one architecture that stands for all of the same network."""
        return arch

    def decode(self, genes: Sequence[int]) -> A:
        """Returns the canonical architecture of a gene vector: the same for vectors that mean the same network."""
        chosen = [values[gene] for values, gene in zip(self.choices, genes, strict=True)]
        return self.canonical(self.from_values(chosen))

    def encode(self, arch: A) -> tuple[int, ...]:
        """Returns a gene vector of an architecture; raises ``ConfigError`` if it is not in the space."""
        self.validate(arch)
        if (chosen := self.values_of(arch)) is None:
            raise ConfigError(f"architecture {arch}: {self.refusal}")
        return tuple(values.index(value) for values, value in zip(self.choices, chosen, strict=True))

    def parse(self, text: Any) -> A:
        """Like :meth:`read`, or takes an architecture; raises ``ConfigError`` if it is not in the space."""
        arch: Any = text if isinstance(text, self.kind) else self.read(text)
        self.validate(arch)
        return self.canonical(arch)

    @property
    def smallest(self) -> A:
        """The architecture of least cost: by default the first of all choices."""
        return self.decode([0] * len(self.choices))

    @property
    def largest(self) -> A:
        """The architecture of greatest cost: by default the last of all choices."""
        return self.decode([n - 1 for n in self.cardinalities])

    @property
    def superset(self) -> A:
        """The architecture that holds all weights: the largest one, unless architectures do not nest."""
        return self.largest

    @property
    def size(self) -> int:
        """The number of distinct networks."""
        return prod(self.cardinalities)

    def stages(self, arch: A) -> Sequence[Sequence[tuple[str, float] | None]]:
        """Returns what a drawing of an architecture shows: per stage the text and size of each block.

        A size is in one unit for the whole space. ``None`` stands for a block that the architecture leaves out.
        """
        return ()

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """For each gene, the number of its values; they are 0 to n - 1."""
        return tuple(len(values) for values in self.choices)

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
        """Like :meth:`parse`, and reads the words ``smallest`` and ``largest``."""
        return getattr(self, text) if text in ("smallest", "largest") else self.parse(text)


class Ladder(SearchSpace[A]):
    """A row of architectures from the cheapest to the most expensive; the one gene is the position in the row.

    Args:
        rungs: The row.

    Example:
        >>> space = Ladder([8, 16, 32])
        >>> space.smallest, space.largest, space.parse("16"), space.encode(16)
        (8, 32, 16, (1,))
    """

    kind: type | tuple[type, ...] = ()

    def __init__(self, rungs: Sequence[A]) -> None:
        self.rungs = tuple(rungs)
        self.choices = (self.rungs,)

    @override
    def validate(self, arch: A) -> None:
        if arch not in self.rungs:
            raise ConfigError(f"architecture: {arch!r} is unknown; choose from {', '.join(map(str, self.rungs))}")

    @override
    def read(self, text: Any) -> A:
        return {str(rung): rung for rung in self.rungs}.get(str(text), text)

    @override
    def from_values(self, values: list[Any]) -> A:
        return values[0]

    @override
    def values_of(self, arch: A) -> tuple[A] | None:
        return (arch,) if arch in self.rungs else None


@dataclass(frozen=True)
class Subset:
    """Some of the numbers of a :class:`SubsetSpace`, ascending; a subclass sets the word they are written after."""

    members: tuple[int, ...]

    word: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.word}: {','.join(map(str, self.members))}"


class SubsetSpace(Ladder[S]):
    """Subsets of some ascending numbers; what is searched are the first number, the first two, and so on."""

    kind: type[S]
    refusal = "leaves out a number before its last, which clients can train, but is not searched"

    def __init__(self, kind: type[S], numbers: Iterable[int]) -> None:
        self.kind = kind
        self.numbers = tuple(numbers)
        super().__init__([self.first(count) for count in range(1, len(self.numbers) + 1)])

    def first(self, count: int) -> S:
        """Returns the first ``count`` numbers."""
        return self.canonical(self.kind(self.numbers[:count]))

    @override
    def validate(self, arch: S) -> None:
        if not arch.members or arch.members != tuple(number for number in self.numbers if number in arch.members):
            raise ConfigError(
                f"architecture {arch}: name {arch.word}, each once and ascending, out of: "
                f"{', '.join(map(str, self.numbers))}"
            )

    @override
    def read(self, text: Any) -> S:
        numbers = str(text).strip().removeprefix(f"{self.kind.word}:").split(",")  # with or without the word
        if not all(number.strip().isdecimal() for number in numbers):
            raise ConfigError(f"architecture: {text!r} cannot be read; write it as '{self.largest}'")
        return self.kind(tuple(map(int, numbers)))
