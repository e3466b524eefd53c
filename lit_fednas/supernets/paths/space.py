"""Operators per layer: paths, which are models, and subspaces, which are what a client receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.space import OWN, SearchSpace

#: All label sets, where an architecture holds all weights.
ALL = "*"


@dataclass(frozen=True)
class Operators:
    """The operators of every searchable layer: one each is a path, several are a subspace (FedorAS, section 3.1).

    Attributes:
        layers: Per layer the operators' names, in the order of the layer's candidates.
        labels: The label set of its classifier.

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
        text = " ".join("+".join(names) for names in self.layers)
        return text if self.labels == OWN else f"{text} > {self.labels}"


class PathSpace(SearchSpace[Operators]):
    """One operator per layer, ordered by MACs; :attr:`superset` and :meth:`parse` know subspaces as well."""

    def __init__(
        self,
        candidates: Sequence[Sequence[str]],
        costs: Sequence[Sequence[float]],
        label_sets: Sequence[str] = (OWN,),
    ) -> None:
        self.label_sets = tuple(label_sets)
        self.choices: tuple[tuple[str, ...], ...] = tuple(tuple(names) for names in candidates)
        self.costs = tuple(tuple(layer) for layer in costs)

    @override
    def stages(self, arch: Operators) -> list[list[tuple[str, float] | None]]:
        """Returns one stage of all layers, each with its operators and their MACs (of several: the greatest)."""
        layers = zip(arch.layers, self.choices, self.costs, strict=True)
        return [[("+".join(names), max(costs[known.index(name)] for name in names)) for names, known, costs in layers]]

    @override
    def decode(self, genes: Sequence[int]) -> Operators:
        layers = zip(self.choices, genes, strict=True)
        return Operators(tuple((names[gene],) for names, gene in layers), self.labels)

    @override
    def encode(self, arch: Operators) -> tuple[int, ...]:
        self.validate(arch)
        if not arch.is_path:
            raise ConfigError(f"architecture {arch}: is a subspace; name one operator per layer")
        return tuple(names.index(name) for names, (name,) in zip(self.choices, arch.layers, strict=True))

    @property
    @override
    def smallest(self) -> Operators:
        return self.decode([layer.index(min(layer)) for layer in self.costs])

    @property
    @override
    def largest(self) -> Operators:
        """The most expensive operator everywhere, without the others' weights."""
        return self.decode([layer.index(max(layer)) for layer in self.costs])

    @property
    @override
    def superset(self) -> Operators:
        """The subspace of all operators, with all classifiers."""
        return Operators(self.choices, ALL if len(self.label_sets) > 1 else OWN)

    def validate(self, arch: Operators) -> None:
        """Raises ``ConfigError`` if a layer is not of its candidates, in their order, or the label set is unknown."""
        if len(arch.layers) != len(self.choices):
            raise ConfigError(f"architecture {arch}: has {len(arch.layers)} layers; give {len(self.choices)}")
        if arch.labels not in (*self.label_sets, ALL):
            raise ConfigError(
                f"architecture {arch}: {arch.labels!r} is not a label set; choose from {', '.join(self.label_sets)}"
            )
        for number, (names, known) in enumerate(zip(arch.layers, self.choices, strict=True)):
            if not names or list(names) != [name for name in known if name in names]:
                raise ConfigError(
                    f"architecture {arch}: layer {number} has {'+'.join(names) or 'none'}; choose from "
                    f"{', '.join(known)}, each once and in this order"
                )

    @override
    def parse(self, text: Any) -> Operators:
        """Reads ``conv1 sep_e1+id ...``, followed by ``> coarse`` for that label set, or an ``Operators``."""
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
    """A cost that is a sum over operators.

    Attributes:
        space: The paths.
        layers: Per layer and candidate.
        fixed: The cost of all that is not searched, with the classifier of the data's own classes.
        extra: The difference to that with another label set's classifier.
    """

    space: PathSpace
    layers: list[list[int]]
    fixed: int
    extra: Mapping[str, int] = field(default_factory=dict)

    def base(self, labels: str) -> int:
        """Returns the cost of all that is not searched, with a label set's classifier."""
        return self.fixed + self.extra.get(labels, 0)

    def of(self, arch: Operators) -> int:
        """Returns the cost of a path when it runs, or of a subspace's most expensive path."""
        return self.base(arch.labels) + sum(max(layer.values()) for layer in self.held(arch))

    def sent(self, arch: Operators) -> int:
        """Returns the total cost of all operators of a path or subspace, as they are sent."""
        return self.base(arch.labels) + sum(sum(layer.values()) for layer in self.held(arch))

    def held(self, arch: Operators) -> list[dict[str, int]]:
        """Returns per layer the operators of a path or subspace and the cost of each."""
        self.space.validate(arch)
        layers = zip(arch.layers, self.space.choices, self.layers, strict=True)
        return [{name: costs[known.index(name)] for name in names} for names, known, costs in layers]
