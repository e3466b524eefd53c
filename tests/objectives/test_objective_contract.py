"""What every objective promises, for every instance in ``instances.py``."""

from functools import partial

import lit_fednas.objectives
from lit_fednas.objectives import Objective
from lit_fednas.supernets import (
    BaseNetworks,
    CellSupernet,
    EarlyExitResNet,
    GroupNorm,
    PathCNN,
    SlicedCNN,
    WidthSupernet,
)
from lit_fednas.testing import ObjectiveContract
from tests.objectives.instances import INSTANCES, OF_BASES, OF_CELLS, OF_EXITS, OF_OPERATORS, OF_WIDTHS
from tests.support import without_instance

SIZES = (1, 8, 8), 4


class TestAnySupernet(ObjectiveContract):
    instances = INSTANCES


class TestOperators(ObjectiveContract):
    instances = OF_OPERATORS
    supernet = partial(PathCNN, *SIZES, width=8, stage_layers=[1, 1], strides=[2, 2], norm=GroupNorm(2))


class TestWidths(ObjectiveContract):
    instances = OF_WIDTHS
    supernet = partial(WidthSupernet, *SIZES, SlicedCNN((4, 6), norm=None), widths=[1, 0.5])


class TestBases(ObjectiveContract):
    instances = OF_BASES
    supernet = partial(BaseNetworks, *SIZES, SlicedCNN((8, 8), norm=None), count=2)


class TestExits(ObjectiveContract):
    instances = OF_EXITS
    supernet = partial(EarlyExitResNet, *SIZES, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])


class TestCells(ObjectiveContract):
    instances = OF_CELLS
    supernet = partial(CellSupernet, *SIZES, width=4, cells=3, nodes=1, norm=GroupNorm(4))


def test_every_objective_has_an_instance() -> None:
    kinds = INSTANCES, OF_OPERATORS, OF_WIDTHS, OF_BASES, OF_EXITS, OF_CELLS
    missing = without_instance(Objective, lit_fednas.objectives, [make for kind in kinds for make in kind.values()])
    assert not missing, f"add instances of {missing} to tests/objectives/instances.py"
