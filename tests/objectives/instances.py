"""One instance or several of every objective, by what it needs of the shared weights: what runs of methods go over.

A new objective needs a line; a test fails as long as it has none (``tests/federation/test_methods.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from lit_fednas.objectives import (
    CrossEntropy,
    DifferentiableSearch,
    HeadOnly,
    IndependentBases,
    MaskedCrossEntropy,
    Objective,
    OrderedDropout,
    PathSampling,
    Proximal,
    SideObjective,
    TaskLoss,
    UnitChanges,
)

INSTANCES: dict[str, Callable[[], Objective]] = {
    "cross-entropy": lambda: CrossEntropy(label_smoothing=0.1),
    "masked": MaskedCrossEntropy,
    "proximal": lambda: Proximal(mu=0.5),
    "task-loss": TaskLoss,
}

#: Those that want a supernet of operators.
OF_OPERATORS: dict[str, Callable[[], Objective]] = {
    "head-only": lambda: HeadOnly(PathSampling()),
    "path-sampling": PathSampling,
}

#: Those that want a supernet of widths.
OF_WIDTHS: dict[str, Callable[[], Objective]] = {
    "ordered-dropout": OrderedDropout,
    "ordered-dropout-distilled": lambda: OrderedDropout(distill=True),
    "unit-changes": UnitChanges,
}

#: Those that want base networks.
OF_BASES: dict[str, Callable[[], Objective]] = {"independent-bases": IndependentBases}

#: Those that want several exits.
OF_EXITS: dict[str, Callable[[], Objective]] = {"side-objective": SideObjective}

#: Those that want a mixture of operators, and clients with validation data.
OF_CELLS: dict[str, Callable[[], Objective]] = {"differentiable-search": DifferentiableSearch}
