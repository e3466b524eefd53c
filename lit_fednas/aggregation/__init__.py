"""Aggregation: how the clients' updates become the next global weights.

To add an aggregation, subclass :class:`OverlapAverage` and implement ``coefficient``, or subclass
:class:`Aggregation` and implement ``start``, ``add``, ``sums`` and ``finish``: a running sum, so that the server's
memory does not grow with the cohort. The guide *Aggregations* lists the methods and describes differential privacy.
"""

from lit_fednas.aggregation.accountant import Accountant, KnownCohorts, SampledCohorts
from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.classes import ClassAverage
from lit_fednas.aggregation.maxnet import Beta, MaxNet
from lit_fednas.aggregation.operators import OperatorAverage
from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.aggregation.private import GaussianMechanism, Released

__all__ = [
    "Accountant",
    "Aggregation",
    "Beta",
    "ClassAverage",
    "GaussianMechanism",
    "KnownCohorts",
    "MaxNet",
    "OperatorAverage",
    "OverlapAverage",
    "Released",
    "SampledCohorts",
]
