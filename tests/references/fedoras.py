"""FedorAS' equations in the plainest form, one element and one client at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor


def equation_5(old: Tensor, values: Sequence[Tensor | None], examples: Sequence[int], min_clients: int = 2) -> Tensor:
    """One operator's tensor after a round.

    Args:
        old: Its global value.
        values: Per client its value there; ``None`` where the client did not hold it.
        examples: Per client the examples that went through the operator.
        min_clients: The privacy rule.
    """
    trained = [(v, n) for v, n in zip(values, examples, strict=True) if v is not None and n > 0]
    if len(trained) < min_clients:
        return old.clone().double()
    total = sum(n for _, n in trained)
    return torch.stack([v.double() * n / total for v, n in trained]).sum(0)


def paths(layers: Sequence[Mapping[str, int]]) -> Iterator[tuple[tuple[str, ...], int]]:
    """All paths of a subspace and what their operators cost."""
    for names in product(*layers):
        yield names, sum(layer[name] for layer, name in zip(layers, names, strict=True))


def greedy_probabilities(
    layers: Sequence[Mapping[str, int]], budget: int, order: Sequence[int]
) -> dict[tuple[str, ...], float]:
    """Equation 3 for one permutation of the layers: the probability of every path."""
    found: dict[tuple[str, ...], float] = {}

    def visit(step: int, chosen: dict[int, str], spent: int, chance: float) -> None:
        if step == len(order):
            found[tuple(chosen[layer] for layer in range(len(layers)))] = chance
            return
        layer = order[step]
        fitting = [name for name, cost in layers[layer].items() if spent + cost <= budget]
        for name in fitting:
            visit(step + 1, {**chosen, layer: name}, spent + layers[layer][name], chance / len(fitting))

    visit(0, {}, 0, 1.0)
    return found
