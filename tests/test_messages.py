"""What passes between server and clients: reports add up, are scaled, and go to plain values and back."""

from __future__ import annotations

import json

import pytest

from lit_fednas.messages import (
    ClassesReport,
    ClientResult,
    ClientTask,
    MacsReport,
    OperatorReport,
    Report,
    UnitChangesReport,
)

TASK = ClientTask(round=2, client=7, arch="whole", num_examples=12)

#: Per type: two reports, their sum, and three times the first.
REPORTS: dict[type[Report], tuple[Report, Report, Report, Report]] = {
    MacsReport: (MacsReport(3), MacsReport(4), MacsReport(7), MacsReport(9)),
    OperatorReport: (
        OperatorReport({"layers.0.conv1": 5, "layers.1.id": 2}),
        OperatorReport({"layers.0.conv1": 1, "layers.0.id": 4}),
        OperatorReport({"layers.0.conv1": 6, "layers.1.id": 2, "layers.0.id": 4}),
        OperatorReport({"layers.0.conv1": 15, "layers.1.id": 6}),
    ),
    ClassesReport: (ClassesReport([0, 2]), ClassesReport([1, 3]), ClassesReport([1, 5]), ClassesReport([0, 6])),
    UnitChangesReport: (
        UnitChangesReport({"layer0": [0.5, 1.0], "layer1": [2.0]}),
        UnitChangesReport({"layer0": [0.25, 0.0], "layer1": [1.0]}),
        UnitChangesReport({"layer0": [0.75, 1.0], "layer1": [3.0]}),
        UnitChangesReport({"layer0": [1.5, 3.0], "layer1": [6.0]}),
    ),
}


def test_all_types_of_reports_are_looked_at() -> None:
    package = {kind for kind in Report.__subclasses__() if kind.__module__.startswith("lit_fednas.")}
    assert package == set(REPORTS)


@pytest.mark.parametrize("kind", REPORTS, ids=lambda kind: kind.__name__)
def test_reports_are_summed_and_go_to_plain_values_and_back(kind: type[Report]) -> None:
    one, other, total, tripled = REPORTS[kind]
    before = json.dumps([one.to_plain(), other.to_plain()])
    assert one + other == other + one == total
    assert one.scaled(3) == tripled
    assert one + one == one.scaled(2)
    assert one.scaled(0.5).scaled(2) == one  # a mean of halves
    for report in REPORTS[kind]:
        assert (
            kind.from_plain(report.to_plain()) == kind.from_plain(json.loads(json.dumps(report.to_plain()))) == report
        )
    for values in one.to_plain().values():  # a copy, which may be changed
        if isinstance(values, dict | list):
            values.clear()
    assert json.dumps([one.to_plain(), other.to_plain()]) == before


def test_examples_through_a_tensor() -> None:
    """By the name of its operator; other tensors are trained by every example."""
    report = OperatorReport({"layers.0.conv1": 5, "layers.1.sep_e1": 0, "layers.10.id": 7})
    assert report.through("layers.0.conv1.weight") == 5
    assert report.through("layers.0.conv1.1.norm.bias") == 5
    assert report.through("layers.1.sep_e1.0.weight") == 0
    assert report.through("layers.1.conv1.weight") == 0  # it was not trained
    assert report.through("layers.10.id.weight") == 7
    assert report.through("stem.0.weight") is None
    assert report.through("heads.own.classifier.bias") is None


def test_a_result_has_a_report_of_each_type() -> None:
    macs, classes = MacsReport(5), ClassesReport([1])
    result = ClientResult(TASK, reports=(macs, classes, MacsReport(9)))
    assert result.report(MacsReport) is macs  # of two the outer objective's, which comes first
    assert result.report(ClassesReport) is classes
    assert result.report(OperatorReport) is None
    assert ClientResult(TASK).report(MacsReport) is None
