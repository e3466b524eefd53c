"""Operators per layer: paths, which are models, and subspaces, which are what a client receives; their supernets."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.base import COUNTERS, NestedSupernet
from lit_fednas.supernets.space import OWN, SearchSpace

#: All label sets, where an architecture holds all weights.
ALL = "*"
#: One of ``COUNTERS``.
Counter = Callable[..., int]


@dataclass(frozen=True)
class Operators:
    """The operators of every searchable layer: one each is a path, several are a subspace (FedorAS, section 3.1).

    Attributes:
        layers: Per layer the operators' names, in the order of the layer's candidates.
        labels: The label set of its classifier.

    Example:
        >>> str(Operators((("conv1",), ("sep_e1", "id")), "coarse"))
        'conv1 sep_e1+id > coarse'
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
        # one stage of all layers; of several operators the greatest MACs
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
        return self.decode([layer.index(max(layer)) for layer in self.costs])

    @property
    @override
    def superset(self) -> Operators:
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
    """A cost that is a sum over operators."""

    space: PathSpace
    layers: list[list[int]]  # per layer and candidate
    fixed: int  # the cost of all that is not searched, with the classifier of the data's own classes
    extra: Mapping[str, int] = field(default_factory=dict)  # the difference to that with another label set's classifier

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


class LabelSets:
    """Label sets beside the data's own classes, as :class:`PathSupernet` takes them (FedorAS, App. H)."""

    def __init__(self, num_classes: int, sets: Mapping[str, Sequence[int]] | None = None) -> None:
        self._sizes = {OWN: num_classes}
        self._tables: dict[str, Tensor] = {}
        for name, labels in (sets or {}).items():
            if name in (OWN, ALL) or not name.isidentifier():
                raise ConfigError(f"supernet.label_sets: {name!r} cannot name a set; use letters, digits and _")
            if len(labels) != num_classes:
                raise ConfigError(
                    f"supernet.label_sets.{name}: has {len(labels)} labels; give one for each of the data's "
                    f"{num_classes} classes"
                )
            if sorted(set(labels)) != list(range(len(set(labels)))):
                raise ConfigError(f"supernet.label_sets.{name}: labels must be 0, 1, ... without a gap")
            self._sizes[name] = len(set(labels))
            self._tables[name] = torch.tensor(labels, dtype=torch.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """All sets, the data's own classes first."""
        return tuple(self._sizes)

    def size(self, name: str) -> int:
        """Returns the number of labels of a set."""
        return self._sizes[name]

    def targets(self, name: str, classes: Tensor) -> Tensor:
        """Returns the labels of examples, given their classes; both ``[batch]``."""
        if name == OWN:
            return classes
        if self._tables[name].device != classes.device:
            self._tables[name] = self._tables[name].to(classes.device)
        return self._tables[name][classes]


class PathNetwork(nn.Module):
    """The network of a path or of a subspace; of the operators that it holds, those of one path run."""

    def __init__(
        self,
        stem: nn.Module,
        layers: Iterable[nn.ModuleDict],  # the operators of each by name
        reductions: Mapping[int, nn.Module],  # behind layers, by the layers' numbers
        heads: Mapping[str, nn.Module],  # by label set; several only if all weights are held
        parallel: int = 1,  # of so many layers in a row all read the same input, and their outputs are added
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.stem = stem
        self.layers = nn.ModuleList(layers)
        self.reductions = nn.ModuleDict({str(number): module for number, module in reductions.items()})
        self.heads = nn.ModuleDict(heads)
        #: The path to run, one operator's name per layer; a client sets it for every batch.
        self.path: Sequence[str] | None = None

    def forward(self, x: Tensor, path: Sequence[str] | None = None) -> Tensor:
        """Returns the logits of a path, by the first label set: by default of :attr:`path`, or of the only one."""
        names: Sequence[str | None] = path or self.path or [None] * len(self.layers)
        operators = [_operator(layer, name) for layer, name in zip(self.layers, names, strict=True)]
        x = self.stem(x)
        for first in range(0, len(operators), self.parallel):
            end = first + self.parallel
            x = functools.reduce(torch.add, [operator(x) for operator in operators[first:end]])
            if str(end - 1) in self.reductions:
                x = self.reductions[str(end - 1)](x)
        return next(iter(self.heads.values()))(x)


def _operator(layer: nn.Module, name: str | None) -> nn.Module:
    """Returns a layer's operator of this name, or its only one."""
    assert isinstance(layer, nn.ModuleDict)
    if name is None and len(layer) > 1:
        raise ValueError("the network holds a subspace of several paths; name the one to run")
    return layer[name or next(iter(layer))]


class PathSupernet(NestedSupernet):
    """A supernet whose architectures are paths and subspaces of operators, and whose costs are sums over them.

    Its networks are :class:`PathNetwork`; a subclass implements :meth:`build`, :meth:`head` and :meth:`operator_costs`,
    and sets :attr:`space`, :attr:`network` and :attr:`head_shape`, the features of an example before the classifier.

    Args:
        input_shape: Shape of one example, without the batch dimension.
        num_classes: Classes, or tokens.
        label_sets: Label sets beside the data's own classes (App. H).
    """

    space: PathSpace
    head_shape: tuple[int, ...]

    #: The arguments of :meth:`path_costs`.
    ADDITIVE_COSTS = tuple(COUNTERS)

    def __init__(
        self, input_shape: Iterable[int], num_classes: int, label_sets: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.label_sets = LabelSets(self.num_classes, label_sets)
        self._path_costs: dict[str, PathCosts] = {}

    @abstractmethod
    def head(self, labels: str) -> nn.Module:
        """Builds the classifier of a label set."""

    @abstractmethod
    def operator_costs(self, count: Counter) -> list[list[int]]:
        """Returns a cost per layer and candidate."""

    def path_costs(self, cost: str) -> PathCosts:
        """Returns a cost by operators: one of :attr:`ADDITIVE_COSTS`."""
        if cost not in self._path_costs:
            self._path_costs[cost] = self._count(COUNTERS[cost])
        return self._path_costs[cost]

    @override
    def targets(self, arch: Operators, classes: Tensor) -> Tensor:
        return self.label_sets.targets(arch.labels, classes)

    @override
    def computation(self, unit: Literal["macs", "operations"], arch: Operators) -> int:
        return self.path_costs(unit).of(arch)

    def _count(self, count: Counter) -> PathCosts:
        """Returns a cost of the operators, and of all that is fixed together."""
        layers, path = self.operator_costs(count), self.space.smallest
        with torch.device("meta"):
            whole = count(self.build(path), self.input_shape, self.input_dtype)
            heads = {name: count(self.head(name), self.head_shape) for name in self.label_sets.names}
        searched = PathCosts(self.space, layers, 0).of(path)
        extra = {name: head - heads[OWN] for name, head in heads.items()}
        extra[ALL] = sum(heads.values()) - heads[OWN]
        return PathCosts(self.space, layers, whole - searched, extra)
