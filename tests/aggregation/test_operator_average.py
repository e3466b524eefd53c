"""Tests OPA against Eq. 5."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.messages import ClientUpdate, OperatorStatistics
from lit_fednas.supernets import Operators
from lit_fednas.testing.aggregations import aggregate, changed, update
from tests.references.fedoras import equation_5
from tests.supernets.instances import kept_instance

NET = kept_instance("path-cnn")
SUBSPACES = [
    Operators((("conv1", "sep_e1", "id"), ("mb3_e1", "id"), ("sep_e2", "id"))),
    Operators((("conv1", "id"), ("mb3_e1", "id"), ("sep_e2", "mb1_e2", "id"))),
    Operators((("sep_e1", "id"), ("mb3_e1", "id"), ("id",))),
]
EXAMPLES = [
    {"0.conv1": 30, "0.sep_e1": 10, "1.mb3_e1": 0, "2.sep_e2": 25},
    {"0.conv1": 6, "1.mb3_e1": 12, "2.sep_e2": 5, "2.mb1_e2": 7},
    {"0.sep_e1": 8, "1.mb3_e1": 2},
]
SEEN = [40, 12, 10]


def updates() -> list[ClientUpdate]:
    plain_updates = [update(NET, client, arch, 100 + client) for client, arch in enumerate(SUBSPACES)]
    return [
        changed(entry, num_seen=num_seen, statistics=(statistics_of(examples),))
        for entry, num_seen, examples in zip(plain_updates, SEEN, EXAMPLES, strict=True)
    ]


def statistics_of(examples: dict[str, int]) -> OperatorStatistics:
    return OperatorStatistics({f"layers.{operator}": count for operator, count in examples.items()})


@pytest.mark.parametrize("min_clients", [1, 2, 3])
def test_equation_5(min_clients: int) -> None:
    client_updates = updates()
    result = aggregate(OperatorAverage(min_clients), NET, client_updates)
    shared = NET.shared_tensors()
    num_kept, num_changed = 0, 0
    for name, old in shared.items():
        short = name.removeprefix("network.")
        layer = short.split(".")
        operator = ".".join(layer[1:3]) if layer[0] == "layers" else None
        counts = SEEN if operator is None else [examples.get(operator, 0) for examples in EXAMPLES]
        expected = equation_5(old, [entry.weights.get(short) for entry in client_updates], counts, min_clients)
        expected = expected if old.is_floating_point() else expected.round()
        atol = 1e-5 if old.is_floating_point() else 0.51
        torch.testing.assert_close(result[name].double(), expected, rtol=1e-5, atol=atol, msg=name)
        num_kept += torch.equal(result[name].to(old.dtype), old)
        num_changed += not torch.equal(result[name].to(old.dtype), old)
    assert num_kept
    assert num_changed
