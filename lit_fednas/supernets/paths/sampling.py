"""Paths under a budget: FedorAS' greedy sampling (section 3.1, Eq. 2 and 3).

Layers are visited in random order, those without a free operator first, and each takes one of the operators that
still fit, with equal probability. If several layers have no free operator, room is reserved for the cheapest
operators of the later ones, which the paper's spaces do not need; so no draw is ever rejected. Where Eq. 1 to 3
say "below the budget", here it is "at most", as in Eq. 6 and Table 8.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.paths.supernet import Operators, PathCosts, PathSupernet


class SampledPath(NamedTuple):
    """One operator's name per layer, and the cost of the whole network."""

    path: tuple[str, ...]
    cost: int


class PathSampler:
    """Draws paths of a subspace that are within a budget.

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

    def sample(self, rng: np.random.Generator, free: float = 1.0) -> SampledPath:
        """Returns a random path, for which as many numbers are drawn whatever the budget.

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
        return SampledPath(tuple(path), cost)


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
