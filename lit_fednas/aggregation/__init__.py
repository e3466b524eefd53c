"""Aggregation: how the clients' updates become the next global weights.

* :class:`OverlapAverage`: every weight's mean over the clients that trained it, by their numbers of examples (FedHeN,
  FjORD, FedRolex, FedTrans). If all clients train the same architecture, this is federated averaging (FedAvg).
* :class:`MaxNet`: the same, but the client of the largest architecture counts by :class:`Beta`, which the callback
  ``BetaDecay`` lowers over the rounds (SuperFed).
* :class:`OperatorAverage`: an operator's mean over the clients that trained it, by the examples that went through it
  (OPA of FedorAS).
* :class:`ClassAverage`: like the first, but in the classifier a client counts only for its own classes (HeteroFL).

The server's optimizer takes the present weights minus the aggregate for a gradient (``model.server_optimizer``). SGD
with a rate of 1, the default, steps exactly to the aggregate; ``FedAdam``, ``FedYogi``, ``FedAdagrad`` and momentum are
other optimizers. ``trim`` leaves the lowest and the highest values of each element out of its mean, against clients
that send nonsense; 0.5 takes the median.

To add an aggregation, subclass :class:`OverlapAverage` and implement ``coefficient``, or subclass
:class:`Aggregation` and implement ``start``, ``add``, ``sums`` and ``finish``: a running sum, so that the server's
memory does not grow with the cohort. In YAML, a class of yours is ``class_path: my_package.MyAggregation``.
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
