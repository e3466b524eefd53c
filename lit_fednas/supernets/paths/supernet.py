"""Supernets of operators: paths are models, clients receive subspaces and sample paths in them (FedorAS)."""

import functools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.costs.counting import meta_copy, on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.base import COUNTERS, NestedSupernet
from lit_fednas.supernets.space import SearchSpace


@dataclass(frozen=True)
class Operators:
    """The operators of all searchable layers: a path has one per layer, a subspace may have several (section 3.1).

    Attributes:
        layers: Names of each layer's operators, in the order of its candidates.

    Example:
        >>> str(Operators((("conv1",), ("sep_e1", "id"))))
        'conv1 sep_e1+id'
    """

    layers: tuple[tuple[str, ...], ...]

    @property
    def is_path(self) -> bool:
        """``True`` if every layer has one operator."""
        return all(len(names) == 1 for names in self.layers)

    def __str__(self) -> str:
        return " ".join("+".join(names) for names in self.layers)


class PathSpace(SearchSpace[Operators]):
    """Paths, of which MACs tell the smallest and the largest; :meth:`read` also accepts subspaces for training."""

    kind = Operators
    refusal = "is a subspace; name one operator per layer"

    def __init__(self, candidates: Sequence[Sequence[str]], costs: Sequence[Sequence[float]]) -> None:
        self.choices: tuple[tuple[str, ...], ...] = tuple(tuple(names) for names in candidates)
        self.costs = tuple(tuple(layer) for layer in costs)

    @override
    def stages(self, arch: Operators) -> list[list[tuple[str, float] | None]]:
        # One stage has all layers; a block shows the largest MACs among its operators.
        layers = zip(arch.layers, self.choices, self.costs, strict=True)
        return [
            [("+".join(names), max(costs[choices.index(name)] for name in names)) for names, choices, costs in layers]
        ]

    @override
    def from_values(self, values: list[str]) -> Operators:
        return Operators(tuple((name,) for name in values))

    @override
    def values_of(self, arch: Operators) -> list[str] | None:
        return [name for (name,) in arch.layers] if arch.is_path else None

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
        return Operators(self.choices)

    @override
    def validate(self, arch: Operators) -> None:
        if len(arch.layers) != len(self.choices):
            raise ConfigError(f"architecture {arch}: has {len(arch.layers)} layers; give {len(self.choices)}")
        for number, (names, choices) in enumerate(zip(arch.layers, self.choices, strict=True)):
            if not names or list(names) != [name for name in choices if name in names]:
                raise ConfigError(
                    f"architecture {arch}: layer {number} has {'+'.join(names) or 'none'}; choose from "
                    f"distinct operators in this order: {', '.join(choices)}"
                )

    @override
    def read(self, text: Any) -> Operators:
        """Reads a path or subspace, as ``conv1 sep_e1+id ...``."""
        return Operators(tuple(tuple(layer.split("+")) for layer in str(text).split()))


@dataclass(frozen=True)
class PathCosts:
    """A cost that is a sum over operators."""

    space: PathSpace
    layers: list[list[int]]  # cost per layer and candidate
    fixed: int  # cost of all layers that are not searched

    def of(self, arch: Operators) -> int:
        """Returns the cost of running a path, or a subspace's most expensive path."""
        return self.fixed + sum(max(layer.values()) for layer in self.operator_costs(arch))

    def sent(self, arch: Operators) -> int:
        """Returns the cost of sending all operators of a path or subspace."""
        return self.fixed + sum(sum(layer.values()) for layer in self.operator_costs(arch))

    def operator_costs(self, arch: Operators) -> list[dict[str, int]]:
        """Returns the cost of each operator of a path or subspace, per layer."""
        self.space.validate(arch)
        layers = zip(arch.layers, self.space.choices, self.layers, strict=True)
        return [{name: costs[choices.index(name)] for name in names} for names, choices, costs in layers]


class PathNetwork(nn.Module):
    """The network of a path or subspace; a call runs one path."""

    def __init__(
        self,
        stem: nn.Module,
        layers: Iterable[nn.ModuleDict],  # operators by name, per layer
        reductions: Mapping[int, nn.Module],  # modules after a layer, by the layer's number
        head: nn.Module,
        parallel: int = 1,  # number of consecutive layers that read one input and add their outputs
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.stem = stem
        self.layers = nn.ModuleList(layers)
        self.reductions = nn.ModuleDict({str(number): module for number, module in reductions.items()})
        self.head = head
        #: The path to run, one operator's name per layer; a client sets it for every batch.
        self.path: Sequence[str] | None = None

    def forward(self, x: Tensor, path: Sequence[str] | None = None) -> Tensor:
        """Returns the logits of a path, by default of :attr:`path` or of the only path."""
        names: Sequence[str | None] = path or self.path or [None] * len(self.layers)
        operators = [_operator(layer, name) for layer, name in zip(self.layers, names, strict=True)]
        x = self.stem(x)
        for first in range(0, len(operators), self.parallel):
            end = first + self.parallel
            x = functools.reduce(torch.add, [operator(x) for operator in operators[first:end]])
            if str(end - 1) in self.reductions:
                x = self.reductions[str(end - 1)](x)
        return self.head(x)

    def input_shapes(self, input_shape: tuple[int, ...], dtype: torch.dtype) -> list[tuple[int, ...]]:
        """Returns the shape of one example at the input of each layer."""
        network: Any = meta_copy(self)
        path = [next(iter(layer)) for layer in network.layers]
        shapes: list[tuple[int, ...]] = []
        for layer, name in zip(network.layers, path, strict=True):
            layer[name].register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape[1:])))
        network(torch.zeros(2, *input_shape, dtype=dtype, device="meta"), path)
        return shapes


def _operator(layer: nn.Module, name: str | None) -> nn.Module:
    """Returns a layer's operator of this name, or its only operator."""
    assert isinstance(layer, nn.ModuleDict)
    if name is None and len(layer) > 1:
        raise ValueError("the network has several paths; name the path to run")
    return layer[name or next(iter(layer))]


def in_order(operators: Sequence[str], candidates: Iterable[str]) -> list[str]:
    """Sorts operators in the order of the candidates; raises ``ConfigError`` for unknown or repeated ones."""
    ordered = [name for name in candidates if name in operators]
    if len(ordered) != len(operators):
        raise ConfigError(f"supernet.operators: {list(operators)} must be distinct and among {', '.join(candidates)}")
    return ordered


class PathSupernet(NestedSupernet):
    """A supernet of paths and subspaces of operators, with costs that are sums over operators.

    A subclass implements :meth:`build` and calls :meth:`set_candidates` in its constructor.
    """

    space: PathSpace
    network: PathNetwork

    #: The valid arguments of :meth:`path_costs`.
    ADDITIVE_COSTS = ("macs", "operations", "parameters", "bytes")

    @override
    @abstractmethod
    def build(self, arch: Operators) -> PathNetwork: ...

    def set_candidates(self, candidates: Sequence[Sequence[str]]) -> None:
        """Builds the network from each layer's candidates and sets the space."""
        self.network = self.build(Operators(tuple(map(tuple, candidates))))
        self._shapes = self.network.input_shapes(self.input_shape, self.input_dtype)
        self._path_costs: dict[str, PathCosts] = {}
        self.space = PathSpace(candidates, self._operator_costs(count_macs))

    def path_costs(self, cost: str) -> PathCosts:
        """Returns one of :attr:`ADDITIVE_COSTS`, split into the costs of operators."""
        if cost not in self._path_costs:
            count, path = COUNTERS[cost], self.space.smallest
            layers = self._operator_costs(count)
            total = count(on_meta(self.build, path), self.input_shape, self.input_dtype)
            searchable = PathCosts(self.space, layers, 0).of(path)
            self._path_costs[cost] = PathCosts(self.space, layers, total - searchable)
        return self._path_costs[cost]

    def _operator_costs(self, count: Callable[..., int]) -> list[list[int]]:
        """Returns the cost of each layer's candidates."""
        layers = zip(self.network.layers, self._shapes, strict=True)
        return [[count(operator, shape) for operator in layer.children()] for layer, shape in layers]

    @override
    def counted(self, name: str, arch: Operators) -> int:
        return self.path_costs(name).of(arch) if name in ("macs", "operations") else super().counted(name, arch)


class PathSampler:
    """Draws paths of a subspace within a budget: FedorAS' greedy sampling (section 3.1, Eq. 2 and 3).

    It visits layers in random order, those without a free operator first, and each layer takes one of the operators
    that still fit, with equal probability. Unlike the paper's spaces, several layers may have no free operator: the
    cost of later layers' cheapest operators is reserved, so that no draw is rejected. The budget is an upper bound
    ("at most", as in Eq. 6 and Table 8), where Eq. 1 to 3 say "below".

    Args:
        costs: The costs of the operators.
        subspace: The operators to choose from.
        budget: Largest cost of a path.
        unsupported: Operators of infinite cost (section 3.1, footnote 3).

    Attributes:
        least: Cost of the cheapest path.
        most: Cost of the most expensive path, or the budget if it is lower.

    Raises:
        ConfigError: All operators of a layer are unsupported, or the cheapest path exceeds the budget.
    """

    def __init__(
        self,
        costs: PathCosts,
        subspace: Operators,
        budget: float = float("inf"),
        unsupported: Collection[str] = (),
    ) -> None:
        self._names: list[list[str]] = []
        self._prices: list[list[int]] = []
        for number, layer in enumerate(costs.operator_costs(subspace)):
            offers = sorted((price, name) for name, price in layer.items() if name not in unsupported)
            if not offers:
                raise ConfigError(f"all operators of layer {number} ({', '.join(layer)}) are unsupported")
            self._prices.append([price for price, _ in offers])
            self._names.append([name for _, name in offers])
        cheapest = np.array([prices[0] for prices in self._prices])
        self.least = costs.fixed + int(cheapest.sum())
        self.most = min(budget, costs.fixed + sum(prices[-1] for prices in self._prices))
        if budget < self.least:
            raise ConfigError(f"a budget of {budget:g} is below the cheapest path, {self.least:g}")
        self._paid, self._free = np.flatnonzero(cheapest > 0), np.flatnonzero(cheapest == 0)  # layers

    def sample(self, rng: np.random.Generator, free: float = 1.0) -> tuple[tuple[str, ...], int]:
        """Returns a random path and its cost; ``free`` is the usable share of the budget above the cheapest path."""
        budget = self.least + free * (self.most - self.least)
        order = np.concatenate([rng.permutation(self._paid), rng.permutation(self._free)]).tolist()
        draws = rng.random(len(order)).tolist()  # their number does not depend on the budget
        path = [""] * len(order)
        cost = self.least  # later layers count with their cheapest operators
        for layer, draw in zip(order, draws, strict=True):
            prices = self._prices[layer]
            index = int(draw * bisect_right(prices, prices[0] + budget - cost))
            cost += prices[index] - prices[0]
            path[layer] = self._names[layer][index]
        return tuple(path), cost


def path_sampler(
    supernet: PathSupernet,
    subspace: Operators,
    limits: Mapping[str, float],
    unsupported: Collection[str] = (),
    tier: str = "",
) -> PathSampler:
    """Returns a sampler for a device's limits.

    Args:
        supernet: The supernet, which determines the costs.
        subspace: The operators to choose from.
        limits: At most one limit, of a cost that is a sum over operators.
        unsupported: Operators that the device cannot run.
        tier: The device's tier, for the text of an error.

    Raises:
        ConfigError: Another cost is limited, or no path is within the limit.
    """
    if len(limits) > 1 or set(limits) - set(supernet.ADDITIVE_COSTS):
        raise ConfigError(
            f"model.tiers: {tier or 'a client'} has limits of {', '.join(limits)}, but path sampling needs one limit; "
            f"choose from {', '.join(supernet.ADDITIVE_COSTS)}"
        )
    cost, budget = next(iter(limits.items()), ("operations", float("inf")))
    try:
        return PathSampler(supernet.path_costs(cost), subspace, budget, unsupported)
    except ConfigError as error:
        raise ConfigError(
            f"model.tiers: {tier or 'a client'} cannot run any path of {subspace}: {error} ({cost}); raise its limit"
        ) from None
