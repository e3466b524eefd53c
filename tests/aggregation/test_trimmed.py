"""Trimmed means and medians, against a program that goes through the elements one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lit_fednas.aggregation import MaxNet, OperatorAverage, OverlapAverage
from lit_fednas.messages import ClientUpdate
from lit_fednas.supernets import Supernet
from lit_fednas.testing.aggregations import aggregate, random_updates
from tests.aggregation.instances import Vector, vector_update
from tests.supernets.instances import kept_instance


def one_by_one(net: Supernet, updates: list[ClientUpdate], weights: list[float], trim: float) -> dict[str, Any]:
    """Each element's values in a list, sorted, cut, averaged."""
    found = {}
    for name, old in net.shared_tensors().items():
        held: list[list[tuple[float, int]]] = [[] for _ in range(old.numel())]
        places = torch.arange(old.numel()).view(old.shape)
        for number, one in enumerate(updates):
            for inner, region in net.regions(one.task.arch).items():
                if region.name == name:
                    values = one.weights[inner].flatten().tolist()
                    for place, value in zip(region.of(places).flatten().tolist(), values, strict=True):
                        held[place].append((value, number))
        means = old.double().flatten()
        for place, values in enumerate(held):
            cut = min(math.ceil(round(trim * len(values), 6)), math.ceil(len(values) / 2) - 1)
            left = sorted(values)[cut : len(values) - cut] if values else []
            if left:
                means[place] = sum(v * weights[n] for v, n in left) / sum(weights[n] for _, n in left)
        found[name] = means.view(old.shape)
    return found


@pytest.mark.parametrize("trim", [0.25, 0.5])
@pytest.mark.parametrize("net_name", ["elastic-batchnorm", "rolling"])
def test_every_element(net_name: str, trim: float) -> None:
    net = kept_instance(net_name)
    updates = sorted(random_updates(net, 9, largest=True, seed=1), key=lambda one: one.task.client)
    examples = [float(one.task.num_examples) for one in updates]
    result = aggregate(OverlapAverage(trim=trim), net, updates)
    expected = one_by_one(net, updates, examples, trim)
    for name, tensor in result.items():
        counter = not net.shared_tensors()[name].is_floating_point()
        torch.testing.assert_close(
            tensor.double(), expected[name], rtol=1e-5, atol=0.51 if counter else 1e-6, msg=f"{name} {trim}"
        )


# the elements' holders: 0 has a, b; 1 has a, b, c, d; 2 has a, b, c; 3 has a, b, c
VECTORS = [
    vector_update(0, (0, 2), 1, 2.0),
    vector_update(1, (0, 4), 3, -1e9),
    vector_update(2, (0, 3), 2, 4.0),
    vector_update(3, (0, 3), 4, 7.0),
]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # of four values one is cut at either end, of three too; one that nobody else has cannot be judged
        (OverlapAverage(trim=0.34), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        # a tenth of four values, or of three, is rounded up to one
        (OverlapAverage(trim=0.1), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        # beta 0.9 for the largest, which is the one that is left out
        (MaxNet(trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        (OperatorAverage(min_clients=2, trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, 40.0]),
        (OperatorAverage(min_clients=4, trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 30.0, 40.0]),
    ],
    ids=["trimmed", "rounded up", "maxnet", "operators", "operators of four"],
)
def test_by_hand(aggregation: OverlapAverage, expected: list[float]) -> None:
    result = aggregate(aggregation, Vector(), VECTORS)
    torch.testing.assert_close(result["network.w"], torch.tensor(expected))


def test_of_equal_values_that_of_the_first_client_is_left_out() -> None:
    """The equal values have different weights; of 2, 2, 5 and 9 one 2 and the 9 go."""
    clients = [(3, (0, 4), 1, 9.0), (2, (0, 3), 2, 2.0), (0, (0, 4), 3, 5.0), (1, (0, 3), 4, 2.0)]
    updates = [vector_update(*one) for one in clients]
    result = aggregate(OverlapAverage(trim=0.25), Vector(), updates)
    torch.testing.assert_close(result["network.w"][0].detach(), torch.tensor((2 * 2.0 + 3 * 5.0) / 5))
