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
other optimizers.

**Differential privacy** of every client (user level) is the key ``privacy``: updates are clipped, noise is added to
their sum once per round, and an accountant keeps what has been spent (``privacy/epsilon``, in the records, the progress
bar and the report). It works with :class:`OverlapAverage` and :class:`MaxNet`; what has no known bound on a client's
influence is refused with the reason. It needs ``pip install 'lit-fednas[privacy]'``.

```yaml
model:
  aggregation: {class_path: lit_fednas.aggregation.OverlapAverage, init_args: {weighted: false}}
  cohort: {class_path: lit_fednas.federation.PoissonCohort, init_args: {ratio: 0.1}}   # secret; others count as known
  faults: {min_survivors: 0, max_failed_rounds: null}      # failures must not decide whether the server steps
privacy:
  clip_norm: 1.0
  noise_multiplier: 1.0        # left out: found for target_epsilon and trainer.max_rounds
  target_epsilon: 8.0          # the run ends before it exceeds this
  adaptive: {quantile: 0.5}    # the norm follows the updates' median
```

:mod:`lit_fednas.aggregation.private` derives the bound for networks of different size,
:mod:`lit_fednas.callbacks.privacy` says what is protected and what not.

``trim`` leaves the lowest and the highest values of each element out of its mean, against clients
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
