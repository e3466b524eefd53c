"""What every supernet promises, for every instance in ``instances.py``."""

import pytest

import lit_fednas.supernets
from lit_fednas.supernets import Supernet
from lit_fednas.testing import SupernetContract
from tests.supernets.instances import INSTANCES, VARIANTS
from tests.support import without_instance


class TestSupernets(SupernetContract):
    instances = {  # noqa: RUF012
        name: pytest.param(make, marks=pytest.mark.slow) if name in VARIANTS else make
        for name, make in sorted(INSTANCES.items())
    }


def test_every_supernet_has_an_instance() -> None:
    missing = without_instance(Supernet, lit_fednas.supernets, INSTANCES.values())
    assert not missing, f"add instances of {missing} to tests/supernets/instances.py"
