"""Contract tests of all assignments in the table of methods, by the supernet that they need.

A new assignment needs a line in ``tests/federation/methods.py`` and its name here; otherwise a test fails.
"""

from collections.abc import Callable
from functools import partial

import lit_fednas.assignment
from lit_fednas.assignment import Assignment, RisingPath, TrackingSandwich
from lit_fednas.supernets import BaseNetworks, PathCNN, SlicedCNN, WidthSupernet
from lit_fednas.testing import AssignmentContract
from lit_fednas.testing.assignments import TIERS
from tests.federation.methods import ASSIGNMENTS
from tests.supernets.sequences import pruned_sequence
from tests.supernets.suites import grown_suite
from tests.support import without_instance

CNN = SlicedCNN((4, 8))
POOL = {"pool": lambda: TrackingSandwich(RisingPath(5))}


def listed(*names: str) -> dict[str, Callable[[], Assignment]]:
    return {name: ASSIGNMENTS[name] for name in names}


class TestAnySupernet(AssignmentContract):
    instances = listed("largest", "smallest", "random", "sandwich", "tracking", "cost") | POOL


class TestOperators(AssignmentContract):
    instances = listed("share", "bytes")
    supernet = partial(PathCNN, (3, 8, 8), 5, width=8, stage_layers=[2, 1], strides=[2, 1])


class TestWidths(AssignmentContract):
    instances = listed("by-tier", "invariant", "rolling")
    supernet = partial(WidthSupernet, (3, 8, 8), 5, CNN, widths=[1, 0.5, 0.25])
    tiers = TIERS


class TestBases(AssignmentContract):
    instances = listed("bases")
    supernet = partial(BaseNetworks, (3, 8, 8), 5, CNN, count=4)
    tiers = TIERS


class TestSuites(AssignmentContract):
    instances = listed("own", "utility")
    supernet = grown_suite
    tiers = TIERS


class TestSequences(AssignmentContract):
    instances = listed("groups")
    supernet = partial(pruned_sequence, steps=2)
    tiers = TIERS


class TestFewInSequences(TestSequences):
    """Only some of the clients train."""

    instances = listed("few-groups")
    most_tasks = 2


def test_every_assignment_has_an_instance() -> None:
    kinds = TestAnySupernet, TestOperators, TestWidths, TestBases, TestSuites, TestSequences
    makes = [make for kind in kinds for make in kind.instances.values()]
    missing = without_instance(Assignment, lit_fednas.assignment, makes)
    assert not missing, f"add instances of {missing}"
