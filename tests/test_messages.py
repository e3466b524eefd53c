"""Messages between server and clients: statistics as plain values and back."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from lit_fednas.messages import (
    ClassStatistics,
    MacsStatistics,
    OperatorStatistics,
    Statistics,
    UnitChangeStatistics,
)

EXAMPLES: dict[type[Statistics], Statistics] = {
    MacsStatistics: MacsStatistics(3),
    OperatorStatistics: OperatorStatistics({"layers.0.conv1": 5, "layers.1.id": 2}),
    ClassStatistics: ClassStatistics([0, 2]),
    UnitChangeStatistics: UnitChangeStatistics({"layer0": [0.5, 1.0], "layer1": [2.0]}),
}


def test_all_types_of_statistics_have_an_example() -> None:
    package = {kind for kind in Statistics.__subclasses__() if kind.__module__.startswith("lit_fednas.")}
    assert package == set(EXAMPLES)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_statistics_go_to_plain_values_and_back(kind: type[Statistics]) -> None:
    statistics = EXAMPLES[kind]
    plain = asdict(statistics)
    assert kind.from_plain(plain) == kind.from_plain(json.loads(json.dumps(plain))) == statistics


def test_examples_through_a_tensor() -> None:
    """The name of its operator decides; every example trains other tensors."""
    statistics = OperatorStatistics({"layers.0.conv1": 5, "layers.1.sep_e1": 0, "layers.10.id": 7})
    assert statistics.through("layers.0.conv1.weight") == 5
    assert statistics.through("layers.0.conv1.1.norm.bias") == 5
    assert statistics.through("layers.1.sep_e1.0.weight") == 0
    assert statistics.through("layers.1.conv1.weight") == 0  # it was not trained
    assert statistics.through("layers.10.id.weight") == 7
    assert statistics.through("stem.0.weight") is None
    assert statistics.through("head.classifier.bias") is None
