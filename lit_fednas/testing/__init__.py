"""Contract tests: the promises of every supernet, assignment, aggregation and other part, also for your own classes.

Subclass the contract of the part's kind in a test file, name small instances, and run pytest (``pip install pytest``):

    from lit_fednas.testing import SupernetContract

    class TestHiddenUnits(SupernetContract):
        instances = {"three-sizes": lambda: HiddenUnits((1, 8, 8), 10, units=[4, 8, 16])}

One test per instance checks all promises.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("lit_fednas.testing needs pytest, which is not installed; pip install pytest") from error

_MODULES = "aggregations", "assignments", "contract", "data", "objectives", "runs", "search", "supernets"
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))  # failures show values

from lit_fednas.testing.aggregations import AggregationContract  # noqa: E402
from lit_fednas.testing.assignments import AssignmentContract  # noqa: E402
from lit_fednas.testing.data import DataSourceContract, PartitionerContract  # noqa: E402
from lit_fednas.testing.objectives import ObjectiveContract  # noqa: E402
from lit_fednas.testing.runs import CallbackContract, assert_resumes  # noqa: E402
from lit_fednas.testing.search import SearchMethodContract  # noqa: E402
from lit_fednas.testing.supernets import SpaceContract, SupernetContract  # noqa: E402

__all__ = [
    "AggregationContract",
    "AssignmentContract",
    "CallbackContract",
    "DataSourceContract",
    "ObjectiveContract",
    "PartitionerContract",
    "SearchMethodContract",
    "SpaceContract",
    "SupernetContract",
    "assert_resumes",
]
