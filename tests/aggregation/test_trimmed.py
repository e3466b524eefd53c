"""Tests trimmed means and medians against a loop over single elements."""

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


def by_element(net: Supernet, updates: list[ClientUpdate], weights: list[float], trim: float) -> dict[str, Any]:
    """Returns each element's mean over its sorted, trimmed list of values."""
    means_by_name = {}
    for name, old in net.shared_tensors().items():
        values_of_elements: list[list[tuple[float, int]]] = [[] for _ in range(old.numel())]
        positions = torch.arange(old.numel()).view(old.shape)
        for number, update in enumerate(updates):
            for inner, region in net.regions(update.task.arch).items():
                if region.name == name:
                    values = update.weights[inner].flatten().tolist()
                    for position, value in zip(region.of(positions).flatten().tolist(), values, strict=True):
                        values_of_elements[position].append((value, number))
        means = old.double().flatten()
        for position, values in enumerate(values_of_elements):
            cut = min(math.ceil(round(trim * len(values), 6)), math.ceil(len(values) / 2) - 1)
            kept_values = sorted(values)[cut : len(values) - cut] if values else []
            if kept_values:
                means[position] = sum(v * weights[n] for v, n in kept_values) / sum(weights[n] for _, n in kept_values)
        means_by_name[name] = means.view(old.shape)
    return means_by_name


@pytest.mark.parametrize("trim", [0.25, 0.5])
@pytest.mark.parametrize("net_name", ["elastic-batchnorm", "rolling"])
def test_every_element(net_name: str, trim: float) -> None:
    net = kept_instance(net_name)
    updates = sorted(random_updates(net, 9, largest=True, seed=1), key=lambda update: update.task.client)
    examples = [float(update.task.num_examples) for update in updates]
    result = aggregate(OverlapAverage(trim=trim), net, updates)
    expected = by_element(net, updates, examples, trim)
    for name, tensor in result.items():
        counter = not net.shared_tensors()[name].is_floating_point()
        torch.testing.assert_close(
            tensor.double(), expected[name], rtol=1e-5, atol=0.51 if counter else 1e-6, msg=f"{name} {trim}"
        )


# Client 0 trains elements a and b; client 1 all; clients 2 and 3 a, b and c.
VECTORS = [
    vector_update(0, (0, 2), 1, 2.0),
    vector_update(1, (0, 4), 3, -1e9),
    vector_update(2, (0, 3), 2, 4.0),
    vector_update(3, (0, 3), 4, 7.0),
]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # One of four or three values is cut at either end; a single value is kept.
        (OverlapAverage(trim=0.34), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        # A tenth of four or three values is rounded up to one.
        (OverlapAverage(trim=0.1), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        # The largest architecture, with a beta of 0.9, is cut.
        (MaxNet(trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, -1e9]),
        (OperatorAverage(min_clients=2, trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 4.0, 40.0]),
        (OperatorAverage(min_clients=4, trim=0.5), [(2 + 2 * 4) / 3, (2 + 2 * 4) / 3, 30.0, 40.0]),
    ],
    ids=["trimmed", "rounded up", "maxnet", "operators", "operators of four"],
)
def test_by_hand(aggregation: OverlapAverage, expected: list[float]) -> None:
    result = aggregate(aggregation, Vector(), VECTORS)
    torch.testing.assert_close(result["network.w"], torch.tensor(expected))


def test_the_first_client_s_value_is_cut_among_ties() -> None:
    """Equal values have different weights; of 2, 2, 5 and 9 one 2 and the 9 are cut."""
    clients = [(3, (0, 4), 1, 9.0), (2, (0, 3), 2, 2.0), (0, (0, 4), 3, 5.0), (1, (0, 3), 4, 2.0)]
    updates = [vector_update(*client) for client in clients]
    result = aggregate(OverlapAverage(trim=0.25), Vector(), updates)
    torch.testing.assert_close(result["network.w"][0].detach(), torch.tensor((2 * 2.0 + 3 * 5.0) / 5))
