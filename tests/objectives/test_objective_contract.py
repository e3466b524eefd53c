"""The contract of every objective of the methods' table, by the supernet that it needs.

A new objective needs a line in ``tests/federation/methods.py``, and its name here; otherwise a test fails.
"""

from collections.abc import Callable
from functools import partial

import lit_fednas.objectives
from lit_fednas.objectives import DifferentiableSearch, Objective, TaskLoss
from lit_fednas.testing import ObjectiveContract
from tests.federation.methods import IMAGE, LOSSES, NETS, OBJECTIVES, OUTPUTS
from tests.support import without_instance


def around_task_loss(*names: str) -> dict[str, Callable[[], Objective]]:
    return {name: lambda name=name: OBJECTIVES[name](TaskLoss()) for name in names}


class TestAnySupernet(ObjectiveContract):
    instances = LOSSES | around_task_loss("proximal", "dynamic")


class TestOperators(ObjectiveContract):
    instances = around_task_loss("paths")
    supernet = partial(NETS["operators"], IMAGE, OUTPUTS)


class TestWidths(ObjectiveContract):
    instances = around_task_loss("ordered", "distilled", "changes")
    supernet = partial(NETS["widths"], IMAGE, OUTPUTS)


class TestBases(ObjectiveContract):
    instances = around_task_loss("bases")
    supernet = partial(NETS["bases"], IMAGE, OUTPUTS)


class TestExits(ObjectiveContract):
    instances = around_task_loss("side", "depthwise")
    supernet = partial(NETS["exits"], IMAGE, OUTPUTS)


class TestCells(ObjectiveContract):
    instances = {"search": DifferentiableSearch}  # noqa: RUF012
    supernet = partial(NETS["cells"], IMAGE, OUTPUTS)


def test_every_objective_has_an_instance() -> None:
    kinds = TestAnySupernet, TestOperators, TestWidths, TestBases, TestExits, TestCells
    makes = [make for kind in kinds for make in kind.instances.values()]
    missing = without_instance(Objective, lit_fednas.objectives, makes)
    assert not missing, f"add instances of {missing}"
