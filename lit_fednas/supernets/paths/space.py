"""Operators per layer: paths, which are models, and subspaces, which are what a client receives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.labels import ALL, OWN
from lit_fednas.supernets.space import SearchSpace


@dataclass(frozen=True)
class Operators:
    """The operators of every searchable layer: one each is a path, several are a subspace (FedorAS, section 3.1).

    Attributes:
        layers: Per layer the operators' names, in the order of the layer's candidates.
        labels: The label set that its classifier tells apart (``lit_fednas.supernets.labels``).

    Example:
        >>> str(Operators((("conv1",), ("sep_e1", "id"))))
        'conv1 sep_e1+id'
        >>> str(Operators((("conv1",),), "coarse"))
        'conv1 > coarse'
    """

    layers: tuple[tuple[str, ...], ...]
    labels: str = OWN

    @property
    def is_path(self) -> bool:
        """Whether every layer has one operator."""
        return all(len(names) == 1 for names in self.layers)

    def __str__(self) -> str:
        """Layers apart, a layer's operators joined by ``+``; then the label set, if it is not the data's own."""
        text = " ".join("+".join(names) for names in self.layers)
        return text if self.labels == OWN else f"{text} > {self.labels}"


class PathSpace(SearchSpace[Operators]):
    """One operator per layer out of its candidates.

    Genes are places among a layer's candidates. :attr:`superset` and :meth:`parse` know subspaces as well; what
    is sampled, mutated and searched are paths.

    Args:
        candidates: Per layer the operators' names.
        costs: Per layer and candidate what it costs, to tell the bounds; by MACs.
        label_sets: All label sets.
        labels: The label set of the paths that are drawn and decoded.

    Example:
        >>> space = PathSpace([["conv1", "id"], ["sep_e1", "sep_e2", "id"]], [[9, 0], [3, 6, 0]])
        >>> space.size, str(space.smallest), str(space.largest), str(space.superset)
        (6, 'id id', 'conv1 sep_e2', 'conv1+id sep_e1+sep_e2+id')
    """

    def __init__(
        self,
        candidates: Sequence[Sequence[str]],
        costs: Sequence[Sequence[float]],
        label_sets: Sequence[str] = (OWN,),
        labels: str = OWN,
    ) -> None:
        self.label_sets = tuple(label_sets)
        self.labels = labels
        self.candidates = tuple(tuple(names) for names in candidates)
        self.costs = tuple(tuple(layer) for layer in costs)
        self.cardinalities = tuple(len(names) for names in self.candidates)

    def decode(self, genes: Sequence[int]) -> Operators:
        """The path of these places."""
        layers = zip(self.candidates, genes, strict=True)
        return Operators(tuple((names[gene],) for names, gene in layers), self.labels)

    def encode(self, arch: Operators) -> tuple[int, ...]:
        """The places of a path's operators."""
        self.validate(arch)
        if not arch.is_path:
            raise ConfigError(f"architecture {arch}: is a subspace; name one operator per layer")
        return tuple(names.index(chosen) for names, (chosen,) in zip(self.candidates, arch.layers, strict=True))

    @property
    def smallest(self) -> Operators:
        """The cheapest operator everywhere."""
        return self.decode([layer.index(min(layer)) for layer in self.costs])

    @property
    def largest(self) -> Operators:
        """The dearest operator everywhere; it does not hold the others' weights."""
        return self.decode([layer.index(max(layer)) for layer in self.costs])

    @property
    def superset(self) -> Operators:
        """The subspace of all operators, with all classifiers."""
        return Operators(self.candidates, ALL if len(self.label_sets) > 1 else OWN)

    def for_labels(self, labels: str) -> PathSpace:
        """The same paths, ending in another classifier."""
        if labels not in self.label_sets:
            raise ConfigError(f"labels: {labels!r} is no label set; there are: {', '.join(self.label_sets)}")
        return PathSpace(self.candidates, self.costs, self.label_sets, labels)

    def labels_of(self, arch: Operators) -> str:
        """Its label set."""
        return arch.labels

    @property
    def size(self) -> int:
        """The number of paths."""
        return prod(self.cardinalities)

    def layers_with(self, arch: Operators, operators: Collection[str]) -> int:
        """Counts them."""
        return sum(not set(operators).isdisjoint(names) for names in arch.layers)

    def validate(self, arch: Operators) -> None:
        """Raises ``ConfigError`` if a layer is missing, empty, out of order, or has an unknown operator."""
        if len(arch.layers) != len(self.candidates):
            raise ConfigError(f"architecture {arch}: has {len(arch.layers)} layers; give {len(self.candidates)}")
        if arch.labels not in (*self.label_sets, ALL):
            raise ConfigError(
                f"architecture {arch}: {arch.labels!r} is no label set; there are: {', '.join(self.label_sets)}"
            )
        for place, (names, known) in enumerate(zip(arch.layers, self.candidates, strict=True)):
            if not names or list(names) != [name for name in known if name in names]:
                raise ConfigError(
                    f"architecture {arch}: layer {place} has {'+'.join(names) or 'none'}; choose from "
                    f"{', '.join(known)}, each once and in this order"
                )

    def parse(self, text: Any) -> Operators:
        """Reads ``conv1 sep_e1+id ...``, with ``> coarse`` behind it for that label set, or an ``Operators``."""
        if isinstance(text, Operators):
            arch = text
        else:
            path, _, labels = str(text).partition(">")
            layers = tuple(tuple(layer.split("+")) for layer in path.split())
            arch = Operators(layers, labels.strip() or self.labels)
        self.validate(arch)
        return arch


@dataclass(frozen=True)
class PathCosts:
    """A cost that adds up over operators.

    Attributes:
        space: The paths.
        layers: Per layer and candidate.
        fixed: Of all that is not searched, with the classifier of the data's own classes.
        extra: What that changes by with another label set's classifier.
    """

    space: PathSpace
    layers: list[list[int]]
    fixed: int
    extra: Mapping[str, int] = field(default_factory=dict)

    def base(self, labels: str) -> int:
        """Of all that is not searched, with a label set's classifier."""
        return self.fixed + self.extra.get(labels, 0)

    def of(self, arch: Operators) -> int:
        """What a path costs when it runs, or a subspace's dearest path."""
        return self.base(arch.labels) + sum(max(layer.values()) for layer in self.held(arch))

    def sent(self, arch: Operators) -> int:
        """What all operators of a path or subspace cost together, as those that are sent do."""
        return self.base(arch.labels) + sum(sum(layer.values()) for layer in self.held(arch))

    def held(self, arch: Operators) -> list[dict[str, int]]:
        """Per layer, the operators of a path or subspace and what each costs."""
        self.space.validate(arch)
        priced = [
            dict(zip(known, costs, strict=True))
            for known, costs in zip(self.space.candidates, self.layers, strict=True)
        ]
        return [{name: prices[name] for name in names} for names, prices in zip(arch.layers, priced, strict=True)]
