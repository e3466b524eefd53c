"""What every supernet promises, for every instance in ``instances.py``."""

from functools import partial

import pytest

import lit_fednas.supernets
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.cells.space import GenotypeSpace
from lit_fednas.testing import SpaceContract, SupernetContract
from tests.supernets.instances import INSTANCES, VARIANTS, kept_instance
from tests.support import without_instance


class TestSupernets(SupernetContract):
    instances = {  # noqa: RUF012
        name: pytest.param(make, marks=pytest.mark.slow) if name in VARIANTS else make
        for name, make in sorted(INSTANCES.items())
    }


class TestGenotypes(SpaceContract):
    instances = {"two-nodes": lambda: GenotypeSpace(2)}  # noqa: RUF012


def test_every_supernet_has_an_instance() -> None:
    missing = without_instance(Supernet, lit_fednas.supernets, [partial(kept_instance, name) for name in INSTANCES])
    assert not missing, f"add instances of {missing} to tests/supernets/instances.py"
