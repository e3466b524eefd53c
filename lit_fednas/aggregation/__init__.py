"""Aggregations, which merge the clients' updates into the next global weights.

To add one, subclass :class:`OverlapAverage` and implement ``coefficient``, or :class:`Aggregation` and implement
``start``, ``add``, ``sums`` and ``finish``. The guide *Aggregations* lists the methods.
"""

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.class_average import ClassAverage
from lit_fednas.aggregation.maxnet import Beta, MaxNet
from lit_fednas.aggregation.operator_average import OperatorAverage
from lit_fednas.aggregation.overlap import OverlapAverage

__all__ = ["Aggregation", "Beta", "ClassAverage", "MaxNet", "OperatorAverage", "OverlapAverage"]
