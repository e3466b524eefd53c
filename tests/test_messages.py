"""Messages between server and clients: reports as plain values and back."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from lit_fednas.messages import (
    ClassesReport,
    MacsReport,
    OperatorReport,
    Report,
    UnitChangesReport,
)

REPORTS: dict[type[Report], Report] = {
    MacsReport: MacsReport(3),
    OperatorReport: OperatorReport({"layers.0.conv1": 5, "layers.1.id": 2}),
    ClassesReport: ClassesReport([0, 2]),
    UnitChangesReport: UnitChangesReport({"layer0": [0.5, 1.0], "layer1": [2.0]}),
}


def test_all_types_of_reports_are_looked_at() -> None:
    package = {kind for kind in Report.__subclasses__() if kind.__module__.startswith("lit_fednas.")}
    assert package == set(REPORTS)


@pytest.mark.parametrize("kind", REPORTS, ids=lambda kind: kind.__name__)
def test_reports_go_to_plain_values_and_back(kind: type[Report]) -> None:
    report = REPORTS[kind]
    assert kind.from_plain(asdict(report)) == kind.from_plain(json.loads(json.dumps(asdict(report)))) == report


def test_examples_through_a_tensor() -> None:
    """The name of its operator decides; every example trains other tensors."""
    report = OperatorReport({"layers.0.conv1": 5, "layers.1.sep_e1": 0, "layers.10.id": 7})
    assert report.through("layers.0.conv1.weight") == 5
    assert report.through("layers.0.conv1.1.norm.bias") == 5
    assert report.through("layers.1.sep_e1.0.weight") == 0
    assert report.through("layers.1.conv1.weight") == 0  # it was not trained
    assert report.through("layers.10.id.weight") == 7
    assert report.through("stem.0.weight") is None
    assert report.through("head.classifier.bias") is None
