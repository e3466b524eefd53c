"""What every objective promises, for every instance in ``instances.py``."""

from functools import partial

import lit_fednas.objectives
from lit_fednas.objectives import Objective
from lit_fednas.testing import ObjectiveContract
from tests.federation.methods import IMAGE, NETS, OUTPUTS
from tests.objectives.instances import INSTANCES, OF_BASES, OF_CELLS, OF_EXITS, OF_OPERATORS, OF_WIDTHS
from tests.support import without_instance


class TestAnySupernet(ObjectiveContract):
    instances = INSTANCES


class TestOperators(ObjectiveContract):
    instances = OF_OPERATORS
    supernet = partial(NETS["operators"], IMAGE, OUTPUTS)


class TestWidths(ObjectiveContract):
    instances = OF_WIDTHS
    supernet = partial(NETS["widths"], IMAGE, OUTPUTS)


class TestBases(ObjectiveContract):
    instances = OF_BASES
    supernet = partial(NETS["bases"], IMAGE, OUTPUTS)


class TestExits(ObjectiveContract):
    instances = OF_EXITS
    supernet = partial(NETS["exits"], IMAGE, OUTPUTS)


class TestCells(ObjectiveContract):
    instances = OF_CELLS
    supernet = partial(NETS["cells"], IMAGE, OUTPUTS)


def test_every_objective_has_an_instance() -> None:
    kinds = INSTANCES, OF_OPERATORS, OF_WIDTHS, OF_BASES, OF_EXITS, OF_CELLS
    missing = without_instance(Objective, lit_fednas.objectives, [make for kind in kinds for make in kind.values()])
    assert not missing, f"add instances of {missing} to tests/objectives/instances.py"
