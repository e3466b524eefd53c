"""The author's contract tests of these parts."""

# ruff: noqa: RUF012

import numpy as np
from own_parts import Columns, Damping, Focal, Halving, HiddenUnits, LargestWins, Layers, TakeTurns

from lit_fednas.testing import (
    AggregationContract,
    AssignmentContract,
    CallbackContract,
    DataSourceContract,
    ObjectiveContract,
    PartitionerContract,
    SpaceContract,
    SupernetContract,
)


def columns(folder):
    np.savetxt(folder / "rows.txt", [[0.1, 0.2, 0], [0.3, 0.4, 1], [0.5, 0.6, 1], [0.7, 0.8, 0]])
    return Columns(str(folder / "rows.txt"), num_classes=2)


class TestHiddenUnits(SupernetContract):
    instances = {"three-sizes": lambda: HiddenUnits((1, 8, 8), 10, units=[4, 8, 16])}


class TestLayers(SpaceContract):
    instances = {"two-layers": lambda: Layers([4, 8, 16], layers=2)}


class TestTakeTurns(AssignmentContract):
    instances = {"it": TakeTurns}
    supernet = lambda: HiddenUnits((1, 8, 8), 4, units=[4, 8])  # noqa: E731


class TestLargestWins(AggregationContract):
    instances = {"it": LargestWins}


class TestFocal(ObjectiveContract):
    instances = {"it": Focal}


class TestHalving(PartitionerContract):
    instances = {"it": Halving}


class TestColumns(DataSourceContract):
    instances = {"four-rows": columns}


class TestDamping(CallbackContract):
    instances = {"it": Damping}
