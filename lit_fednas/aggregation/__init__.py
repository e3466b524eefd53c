"""How updates become the next global weights."""

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.classes import ClassAverage
from lit_fednas.aggregation.maxnet import MaxNet
from lit_fednas.aggregation.operators import OperatorAverage
from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.aggregation.soft import SoftAverage

__all__ = ["Aggregation", "ClassAverage", "MaxNet", "OperatorAverage", "OverlapAverage", "SoftAverage"]
