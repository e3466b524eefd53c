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

    A gene is the index of one choice. Architectures are small hashable values: here tuples of one choice per gene. For
    other values, a subclass overrides :meth:`from_values`, :meth:`values_of`, :meth:`read` and :meth:`validate`; if
    several vectors mean one network, also :meth:`canonical` and :attr:`size`. Clients may train architectures that a
    search does not consider: :meth:`read` and :meth:`validate` accept them, and :meth:`values_of` returns ``None``.

    Attributes:
        choices: For each gene, the values to choose from.
        kind: The type of the architectures, or several types.
        refusal: The reason in the error of :meth:`encode` for an architecture that a search does not consider.

    Example:
        >>> class DepthAndWidth(SearchSpace[tuple[int, int]]):
        ...     choices = ((1, 2, 3), (16, 32))
        >>> space = DepthAndWidth()
        >>> space.smallest, space.decode([1, 1]), space.encode((3, 16)), space.parse("(2, 32)")
        ((1, 16), (2, 32), (2, 0), (2, 32))
    """

    choices: Sequence[Sequence[Any]]
    kind: type | tuple[type, ...] = tuple
    refusal: ClassVar[str] = "cannot be searched"

    def from_values(self, values: list[Any]) -> A:
        """Returns the architecture with these choices, one per gene."""
        return tuple(values)  # type: ignore[return-value]

    def values_of(self, arch: A) -> Sequence[Any] | None:
        """Returns the choice of each gene; ``None`` for an architecture that a search does not consider."""
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
            raise ConfigError(f"architecture {arch}: needs one of each of {', '.join(map(str, self.choices))}")

    def canonical(self, arch: A) -> A:
        """Returns the representative of all architectures that build the same network."""
        return arch

    def decode(self, genes: Sequence[int]) -> A:
        """Returns the canonical architecture of a gene vector; vectors of the same network have the same one."""
        values = [choices[gene] for choices, gene in zip(self.choices, genes, strict=True)]
        return self.canonical(self.from_values(values))

    def encode(self, arch: A) -> tuple[int, ...]:
        """Returns a gene vector of an architecture; raises ``ConfigError`` if it is not in the space."""
        self.validate(arch)
        if (values := self.values_of(arch)) is None:
            raise ConfigError(f"architecture {arch}: {self.refusal}")
        return tuple(choices.index(value) for choices, value in zip(self.choices, values, strict=True))

    def parse(self, text: Any) -> A:
        """Returns the canonical architecture of a text or architecture; raises ``ConfigError`` if it is invalid."""
        arch: Any = text if isinstance(text, self.kind) else self.read(text)
        self.validate(arch)
        return self.canonical(arch)

    @property
    def smallest(self) -> A:
        """The cheapest architecture: by default the first of all choices."""
        return self.decode([0] * len(self.choices))

    @property
    def largest(self) -> A:
        """The most expensive architecture: by default the last of all choices."""
        return self.decode([n - 1 for n in self.cardinalities])

    @property
    def superset(self) -> A:
        """The architecture that contains all weights: the largest one, unless architectures do not nest."""
        return self.largest

    @property
    def size(self) -> int:
        """The number of distinct networks."""
        return prod(self.cardinalities)

    def stages(self, arch: A) -> Sequence[Sequence[tuple[str, float] | None]]:
        """Returns each block's text and relative size, per stage, for a drawing; ``None`` for an omitted block."""
        return ()

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of choices of each gene."""
        return tuple(len(values) for values in self.choices)

    def each(self) -> Iterator[A]:
        """Yields every architecture once, in the order of the gene vectors."""
        yield from dict.fromkeys(self.decode(genes) for genes in product(*map(range, self.cardinalities)))

    def sample(self, rng: np.random.Generator) -> A:
        """Draws every gene uniformly and independently."""
        return self.decode([int(rng.integers(n)) for n in self.cardinalities])

    def mutate(self, arch: A, rng: np.random.Generator, rate: float) -> A:
        """Redraws each gene with probability ``rate``."""
        genes = self.encode(arch)
        draws = [int(rng.integers(n)) for n in self.cardinalities]
        is_redrawn = rng.random(len(genes)) < rate
        return self.decode([new if redraw else old for old, new, redraw in zip(genes, draws, is_redrawn, strict=True)])

    def named(self, text: Any) -> A:
        """Parses an architecture, or the words ``smallest`` and ``largest``."""
        return getattr(self, text) if text in ("smallest", "largest") else self.parse(text)


class Ladder(SearchSpace[A]):
    """A row of architectures from the cheapest to the most expensive; the only gene is the position in it.

    Args:
        rungs: The architectures, cheapest first.

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
    """Ascending numbers from a :class:`SubsetSpace`; a subclass sets the word that precedes them in text."""

    members: tuple[int, ...]

    word: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.word}: {','.join(map(str, self.members))}"


class SubsetSpace(Ladder[S]):
    """Subsets of ascending numbers. A search considers the first number, the first two, and so on."""

    kind: type[S]
    refusal = "omits a number before its last one: clients can train it, but it cannot be searched"

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
            numbers = ", ".join(map(str, self.numbers))
            raise ConfigError(f"architecture {arch}: must be distinct {arch.word} in ascending order out of {numbers}")

    @override
    def read(self, text: Any) -> S:
        numbers = str(text).strip().removeprefix(f"{self.kind.word}:").split(",")  # the word may be missing
        if not all(number.strip().isdecimal() for number in numbers):
            raise ConfigError(f"architecture: {text!r} cannot be read; write it as '{self.largest}'")
        return self.kind(tuple(map(int, numbers)))
