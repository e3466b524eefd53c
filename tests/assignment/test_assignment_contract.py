"""What every assignment promises, for every instance in ``instances.py``."""

from functools import partial

import lit_fednas.assignment
from lit_fednas.assignment import Assignment
from lit_fednas.supernets import BaseNetworks, PathCNN
from lit_fednas.supernets.sliced import SlicedCNN
from lit_fednas.supernets.widths import WidthSupernet
from lit_fednas.testing import AssignmentContract
from lit_fednas.testing.assignments import TIERS
from tests.assignment.instances import (
    FEW_OF_SEQUENCES,
    INSTANCES,
    OF_BASES,
    OF_OPERATORS,
    OF_SEQUENCES,
    OF_SUITES,
    OF_WIDTHS,
)
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite
from tests.support import without_instance

CNN = SlicedCNN((4, 8))


class TestAnySupernet(AssignmentContract):
    instances = INSTANCES


class TestOperators(AssignmentContract):
    instances = OF_OPERATORS
    supernet = partial(PathCNN, (3, 8, 8), 5, width=8, stage_layers=[2, 1], strides=[2, 1])


class TestWidths(AssignmentContract):
    instances = OF_WIDTHS
    supernet = partial(WidthSupernet, (3, 8, 8), 5, CNN, widths=[1, 0.5, 0.25])
    tiers = TIERS


class TestBases(AssignmentContract):
    instances = OF_BASES
    supernet = partial(BaseNetworks, (3, 8, 8), 5, CNN, count=4)
    tiers = TIERS


class TestSuites(AssignmentContract):
    instances = OF_SUITES
    supernet = grown_suite
    tiers = TIERS


class TestSequences(AssignmentContract):
    instances = OF_SEQUENCES
    supernet = partial(pruned_sequence, steps=2)
    tiers = TIERS


class TestFewInSequences(TestSequences):
    instances = FEW_OF_SEQUENCES
    most_tasks = 2


def test_every_assignment_has_an_instance() -> None:
    kinds = INSTANCES, OF_OPERATORS, OF_WIDTHS, OF_BASES, OF_SUITES, OF_SEQUENCES
    missing = without_instance(Assignment, lit_fednas.assignment, [make for kind in kinds for make in kind.values()])
    assert not missing, f"add instances of {missing} to tests/assignment/instances.py"
