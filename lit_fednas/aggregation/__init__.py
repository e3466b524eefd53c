"""Aggregation: how the clients' updates become the next global weights.

To add one, subclass :class:`OverlapAverage` and implement ``coefficient``, or :class:`Aggregation` and implement
``start``, ``add``, ``sums`` and ``finish``. The guide *Aggregations* lists the methods.
"""

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.by_reports import ClassAverage, OperatorAverage
from lit_fednas.aggregation.overlap import Beta, MaxNet, OverlapAverage
from lit_fednas.aggregation.private import GaussianMechanism

__all__ = ["Aggregation", "Beta", "ClassAverage", "GaussianMechanism", "MaxNet", "OperatorAverage", "OverlapAverage"]
