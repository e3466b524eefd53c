"""Operators per layer: paths, which are models, and subspaces, which clients receive; supernets, and path sampling."""

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
    """The operators of every searchable layer: one each is a path, several are a subspace (FedorAS, section 3.1).

    Attributes:
        layers: Per layer the operators' names, in the order of the layer's candidates.

    Example:
        >>> str(Operators((("conv1",), ("sep_e1", "id"))))
        'conv1 sep_e1+id'
    """

    layers: tuple[tuple[str, ...], ...]

    @property
    def is_path(self) -> bool:
        """Whether every layer has one operator."""
        return all(len(names) == 1 for names in self.layers)

    def __str__(self) -> str:
        return " ".join("+".join(names) for names in self.layers)


class PathSpace(SearchSpace[Operators]):
    """One operator per layer, ordered by MACs; :attr:`superset` and :meth:`read` know subspaces as well."""

    kind = Operators
    refusal = "is a subspace; name one operator per layer"

    def __init__(self, candidates: Sequence[Sequence[str]], costs: Sequence[Sequence[float]]) -> None:
        self.choices: tuple[tuple[str, ...], ...] = tuple(tuple(names) for names in candidates)
        self.costs = tuple(tuple(layer) for layer in costs)

    @override
    def stages(self, arch: Operators) -> list[list[tuple[str, float] | None]]:
        # one stage of all layers; of several operators the greatest MACs
        layers = zip(arch.layers, self.choices, self.costs, strict=True)
        return [[("+".join(names), max(costs[known.index(name)] for name in names)) for names, known, costs in layers]]

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
        for number, (names, known) in enumerate(zip(arch.layers, self.choices, strict=True)):
            if not names or list(names) != [name for name in known if name in names]:
                raise ConfigError(
                    f"architecture {arch}: layer {number} has {'+'.join(names) or 'none'}; choose from "
                    f"{', '.join(known)}, each once and in this order"
                )

    @override
    def read(self, text: Any) -> Operators:
        """Reads ``conv1 sep_e1+id ...``."""
        return Operators(tuple(tuple(layer.split("+")) for layer in str(text).split()))


@dataclass(frozen=True)
class PathCosts:
    """A cost that is a sum over operators."""

    space: PathSpace
    layers: list[list[int]]  # per layer and candidate
    fixed: int  # the cost of all that is not searched

    def of(self, arch: Operators) -> int:
        """Returns the cost of a path when it runs, or of a subspace's most expensive path."""
        return self.fixed + sum(max(layer.values()) for layer in self.held(arch))

    def sent(self, arch: Operators) -> int:
        """Returns the total cost of all operators of a path or subspace, as they are sent."""
        return self.fixed + sum(sum(layer.values()) for layer in self.held(arch))

    def held(self, arch: Operators) -> list[dict[str, int]]:
        """Returns per layer the operators of a path or subspace and the cost of each."""
        self.space.validate(arch)
        layers = zip(arch.layers, self.space.choices, self.layers, strict=True)
        return [{name: costs[known.index(name)] for name in names} for names, known, costs in layers]


class PathNetwork(nn.Module):
    """The network of a path or of a subspace; of the operators that it holds, those of one path run."""

    def __init__(
        self,
        stem: nn.Module,
        layers: Iterable[nn.ModuleDict],  # the operators of each by name
        reductions: Mapping[int, nn.Module],  # behind layers, by the layers' numbers
        head: nn.Module,
        parallel: int = 1,  # of so many layers in a row all read the same input, and their outputs are added
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
        """Returns the logits of a path: by default of :attr:`path`, or of the only one."""
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
        """Returns the shape of one example as each layer gets it."""
        network: Any = meta_copy(self)
        path = [next(iter(layer)) for layer in network.layers]
        shapes: list[tuple[int, ...]] = []
        for layer, name in zip(network.layers, path, strict=True):
            layer[name].register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape[1:])))
        network(torch.zeros(2, *input_shape, dtype=dtype, device="meta"), path)
        return shapes


def _operator(layer: nn.Module, name: str | None) -> nn.Module:
    """Returns a layer's operator of this name, or its only one."""
    assert isinstance(layer, nn.ModuleDict)
    if name is None and len(layer) > 1:
        raise ValueError("the network holds a subspace of several paths; name the one to run")
    return layer[name or next(iter(layer))]


def in_order(operators: Sequence[str], known: Iterable[str]) -> list[str]:
    """Returns operators in the order of the known ones; raises ``ConfigError`` if one is unknown, or given twice."""
    chosen = [name for name in known if name in operators]
    if len(chosen) != len(operators):
        raise ConfigError(f"supernet.operators: {list(operators)} must be distinct and among {', '.join(known)}")
    return chosen


class PathSupernet(NestedSupernet):
    """A supernet whose architectures are paths and subspaces of operators, and whose costs are sums over them.

    A subclass implements :meth:`build` and calls :meth:`set_candidates` in its constructor.
    """

    space: PathSpace
    network: PathNetwork

    #: The arguments of :meth:`path_costs`.
    ADDITIVE_COSTS = ("macs", "operations", "parameters", "bytes")

    @override
    @abstractmethod
    def build(self, arch: Operators) -> PathNetwork: ...

    def set_candidates(self, candidates: Sequence[Sequence[str]]) -> None:
        """Builds the network of each layer's candidates, and sets the space."""
        self.network = self.build(Operators(tuple(map(tuple, candidates))))
        self._shapes = self.network.input_shapes(self.input_shape, self.input_dtype)
        self._path_costs: dict[str, PathCosts] = {}
        self.space = PathSpace(candidates, self._operator_costs(count_macs))

    def path_costs(self, cost: str) -> PathCosts:
        """Returns a cost by operators: one of :attr:`ADDITIVE_COSTS`."""
        if cost not in self._path_costs:
            count, path = COUNTERS[cost], self.space.smallest
            layers = self._operator_costs(count)
            whole = count(on_meta(self.build, path), self.input_shape, self.input_dtype)
            searched = PathCosts(self.space, layers, 0).of(path)
            self._path_costs[cost] = PathCosts(self.space, layers, whole - searched)
        return self._path_costs[cost]

    def _operator_costs(self, count: Callable[..., int]) -> list[list[int]]:
        """Returns a cost per layer and candidate."""
        layers = zip(self.network.layers, self._shapes, strict=True)
        return [[count(operator, shape) for operator in layer.children()] for layer, shape in layers]

    @override
    def counted(self, name: str, arch: Operators) -> int:
        return self.path_costs(name).of(arch) if name in ("macs", "operations") else super().counted(name, arch)


class PathSampler:
    """Draws paths of a subspace that are within a budget: FedorAS' greedy sampling (section 3.1, Eq. 2 and 3).

    Layers are visited in random order, those without a free operator first, and each takes one of the operators that
    still fit, with equal probability. If several layers have no free operator, room is reserved for the cheapest
    operators of the later ones, which the paper's spaces do not need; so no draw is ever rejected. Where Eq. 1 to 3
    say "below the budget", here it is "at most", as in Eq. 6 and Table 8.

    Args:
        costs: The costs of the operators.
        subspace: The operators to choose from.
        budget: The greatest cost of a path.
        unsupported: Operators of infinite cost (section 3.1, footnote 3).

    Attributes:
        least: The cost of the cheapest path.
        most: The cost of the most expensive path, or the budget if that is lower.

    Raises:
        ConfigError: All operators of a layer are unsupported, or even the cheapest path costs more.
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
        for number, layer in enumerate(costs.held(subspace)):
            held = sorted((price, name) for name, price in layer.items() if name not in unsupported)
            if not held:
                raise ConfigError(f"all operators of layer {number} ({', '.join(layer)}) are unsupported")
            self._prices.append([price for price, _ in held])
            self._names.append([name for _, name in held])
        cheapest = np.array([prices[0] for prices in self._prices])
        self.least = costs.fixed + int(cheapest.sum())
        self.most = min(budget, costs.fixed + sum(prices[-1] for prices in self._prices))
        if budget < self.least:
            raise ConfigError(f"a budget of {budget:g} is below the cheapest path, {self.least:g}")
        self._first, self._then = np.flatnonzero(cheapest > 0), np.flatnonzero(cheapest == 0)

    def sample(self, rng: np.random.Generator, free: float = 1.0) -> tuple[tuple[str, ...], int]:
        """Returns a random path and its cost; as many numbers are drawn whatever the budget.

        Args:
            rng: Random numbers.
            free: The share of the budget above the cheapest path that may be used now (a device may be busy).
        """
        budget = self.least + free * (self.most - self.least)
        order = np.concatenate([rng.permutation(self._first), rng.permutation(self._then)]).tolist()
        draws = rng.random(len(order)).tolist()
        path = [""] * len(order)
        cost = self.least  # while every layer to come takes its cheapest operator
        for layer, draw in zip(order, draws, strict=True):
            prices = self._prices[layer]
            chosen = int(draw * bisect_right(prices, prices[0] + budget - cost))
            cost += prices[chosen] - prices[0]
            path[layer] = self._names[layer][chosen]
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
        supernet: The supernet, which knows the costs.
        subspace: The operators to choose from.
        limits: At most one, by cost, which must be a sum over operators.
        unsupported: Operators that the device cannot run.
        tier: The device's tier, for the message of an error.

    Raises:
        ConfigError: Another cost is limited, or no path is within the limit.
    """
    if len(limits) > 1 or set(limits) - set(supernet.ADDITIVE_COSTS):
        raise ConfigError(
            f"model.tiers: paths are sampled under a limit of one of {', '.join(supernet.ADDITIVE_COSTS)}; "
            f"{tier or 'a client'} is limited in {', '.join(limits)}"
        )
    cost, budget = next(iter(limits.items()), ("operations", float("inf")))
    try:
        return PathSampler(supernet.path_costs(cost), subspace, budget, unsupported)
    except ConfigError as error:
        raise ConfigError(
            f"model.tiers: {tier or 'a client'} cannot run any path of {subspace}: {error} ({cost}); raise its limit"
        ) from None
