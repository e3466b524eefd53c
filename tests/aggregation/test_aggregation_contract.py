"""Contract tests of all aggregations in ``instances.py``."""

import lit_fednas.aggregation
from lit_fednas.aggregation import Aggregation
from lit_fednas.supernets import BatchNorm
from lit_fednas.testing import AggregationContract
from tests.aggregation.instances import INSTANCES
from tests.supernets.suites import grown_suite
from tests.support import without_instance


class TestAggregations(AggregationContract):
    instances = INSTANCES


class TestAggregationsOfSuites(AggregationContract):
    instances = {name: INSTANCES[name] for name in ("overlap", "overlap-alike")}  # noqa: RUF012
    supernets = {"suite": lambda: grown_suite(norm=BatchNorm())}  # noqa: RUF012


def test_every_aggregation_has_an_instance() -> None:
    missing = without_instance(Aggregation, lit_fednas.aggregation, INSTANCES.values())
    missing.remove("PrivateAverage")  # created per round by the callback privacy, see test_private.py
    assert not missing, f"add instances of {missing} to tests/aggregation/instances.py"
