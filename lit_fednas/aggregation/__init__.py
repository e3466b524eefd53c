"""Aggregation: how the clients' updates become the next global weights."""

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.classes import ClassAverage
from lit_fednas.aggregation.maxnet import Beta, MaxNet
from lit_fednas.aggregation.operators import OperatorAverage
from lit_fednas.aggregation.overlap import OverlapAverage

__all__ = ["Aggregation", "Beta", "ClassAverage", "MaxNet", "OperatorAverage", "OverlapAverage"]
