"""The objectives of the methods' table, by what they need of the shared weights: what the contract's tests run over.

A new objective needs a line in ``tests/federation/methods.py``, and its name here; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable

from lit_fednas.objectives import DifferentiableSearch, Objective, TaskLoss
from tests.federation.methods import LOSSES, OBJECTIVES


def around_task_loss(*names: str) -> dict[str, Callable[[], Objective]]:
    return {name: lambda name=name: OBJECTIVES[name](TaskLoss()) for name in names}


INSTANCES = {**LOSSES, **around_task_loss("proximal", "dynamic")}
OF_OPERATORS = around_task_loss("paths")
OF_WIDTHS = around_task_loss("ordered", "distilled", "changes")
OF_BASES = around_task_loss("bases")
OF_EXITS = around_task_loss("side", "depthwise")
#: Those that want a mixture of operators, and clients with validation data.
OF_CELLS = {"search": DifferentiableSearch}
