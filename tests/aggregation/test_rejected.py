"""Rejected updates leave no trace, also where architectures share weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import Aggregation, OperatorAverage, OverlapAverage
from lit_fednas.messages import ClientUpdate, OperatorReport
from lit_fednas.supernets import Operators, Supernet
from lit_fednas.testing.aggregations import aggregate, changed, start, update
from tests.aggregation.instances import INSTANCES, Vector, vector_update
from tests.supernets.instances import kept_instance

PAIRS = [("elastic-batchnorm", name) for name in sorted(INSTANCES)]
PAIRS += [("rolling", "overlap"), ("path-cnn", "operators"), ("path-cnn", "operators-alone")]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[Supernet, str]:
    return kept_instance(request.param[0]), request.param[1]


def made(pair: tuple[Supernet, str]) -> Aggregation:
    return INSTANCES[pair[1]]()


def cohort(net: Supernet, examples: Sequence[int], seed: int = 0) -> list[ClientUpdate]:
    """Clients of four architectures, the largest once, the others in turns."""
    rng = np.random.default_rng(seed)
    drawn: list[Any] = []
    while len(drawn) < 3:
        arch = net.space.sample(rng)
        if arch not in (*drawn, net.space.largest):
            drawn.append(arch)
    archs = [*(drawn[place % 3] for place in range(len(examples) - 1)), net.space.largest]
    updates = [
        update(net, client, arch, count, seed) for client, (arch, count) in enumerate(zip(archs, examples, strict=True))
    ]
    if not isinstance(archs[0], Operators):
        return updates
    # each client trains the first operators that it holds, some of them by few examples
    return [
        changed(one, reports=(OperatorReport(trained(one.task.arch, 1 + place)), *one.result.reports))
        for place, one in enumerate(updates)
    ]


def trained(arch: Operators, count: int) -> dict[str, int]:
    return {f"layers.{layer}.{names[0]}": count for layer, names in enumerate(arch.layers)}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor], rounded: bool = False) -> None:
    """To the bit, or but for roundings, where a half of a counter may go up or down."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        rtol, atol = (1e-5, 1 if tensor.dtype == torch.float64 else 1e-6) if rounded else (0, 0)
        torch.testing.assert_close(tensor, other[name], rtol=rtol, atol=atol, msg=name)


def rejections(updates: Sequence[ClientUpdate]) -> list[list[Any]]:
    """None, one that several clients have trained, the largest, two, all."""
    archs = list(dict.fromkeys(one.task.arch for one in updates))
    return [[], archs[:1], archs[-1:], archs[1:3], archs]


# ---- every aggregation --------------------------------------------------------------------------------


def test_what_was_rejected_was_never_there(pair: tuple[Supernet, str]) -> None:
    """Equal to an aggregation that was told of the same tasks, and never got those updates."""
    net = pair[0]
    updates = cohort(net, [30, 7, 12, 9, 40, 3, 11])
    tasks = [one.task for one in updates]
    results = []
    for rejected in rejections(updates):
        result = aggregate(made(pair), net, updates, tasks, rejected, by_architecture=True)
        left = [one for one in updates if one.task.arch not in rejected]
        assert_equal(result, aggregate(made(pair), net, left, tasks, by_architecture=True))
        assert_equal(result, aggregate(made(pair), net, left, tasks), rounded=True)
        results.append(result)
    for name, old in net.shared_tensors().items():
        assert torch.equal(results[-1][name], old.to(results[-1][name].dtype)), name  # all were rejected
    for result in results[1:]:
        assert any(not torch.equal(tensor, results[0][name]) for name, tensor in result.items())


def test_over_several_ranks(pair: tuple[Supernet, str]) -> None:
    """Each rank keeps sums of all architectures, also of those that its own clients do not train."""
    net = pair[0]
    updates = cohort(net, [30, 7, 12, 9, 40])
    tasks = [one.task for one in updates]
    for rejected in rejections(updates)[:4]:
        ranks = [made(pair) for _ in range(2)]
        for number, rank in enumerate(ranks):
            start(rank, net, tasks, by_architecture=True)
            for one in updates[number::2]:
                rank.add(one)
        for totals in zip(*(rank.sums() for rank in ranks), strict=True):
            totals[0].add_(totals[1])
        whole = aggregate(made(pair), net, updates, tasks, rejected, by_architecture=True)
        assert_equal(ranks[0].finish(rejected), whole, rounded=True)


# ---- by hand ------------------------------------------------------------------------------------------


VECTORS = [
    vector_update(0, (0, 2), 1, 2.0),
    vector_update(1, (1, 3), 3, 6.0),
    vector_update(2, (0, 2), 3, 4.0),
    vector_update(3, (2, 4), 1, 8.0),
]


OVERLAP, OPERATORS = OverlapAverage(), OperatorAverage(min_clients=2)


@pytest.mark.parametrize(
    ("aggregation", "rejected", "expected"),
    [
        (OVERLAP, [], [3.5, (2 + 12 + 18) / 7, (18 + 8) / 4, 8.0]),
        (OVERLAP, [(0, 2), (2, 4)], [10.0, 6.0, 6.0, 40.0]),
        # elements that fewer than two accepted clients have trained keep their value
        (OPERATORS, [], [3.5, (2 + 12 + 18) / 7, (18 + 8) / 4, 40.0]),
        (OPERATORS, [(0, 2)], [10.0, 20.0, (18 + 8) / 4, 40.0]),  # of element 1 one client alone is left
    ],
)
def test_by_hand(aggregation: OverlapAverage, rejected: list, expected: list[float]) -> None:
    result = aggregate(aggregation, Vector(), VECTORS, rejected=rejected, by_architecture=True)
    torch.testing.assert_close(result["network.w"], torch.tensor(expected))
