"""What architectures, rounds and runs cost: multiply-accumulates, parameters, bytes, memory, latency.

:class:`Cost` has what one architecture costs: ``macs`` of one example, ``parameters``, and ``bytes`` as they are sent.
:func:`peak_activation_bytes` is the memory that activations take at most while one example runs. Costs are counted on
the network that a client really receives, not estimated: a subnet has small tensors of its own.

Latency needs a source. :class:`MeasuredLatency` times networks on the machine at hand, warmed up, as the median of
many. :class:`LatencyTable` measures layers one by one and adds them up, and says how far it is from measurements of
whole networks; it can be saved, and used where the device is not at hand.

The callback ``CostLedger`` adds up what a run costs (:class:`RoundCost`), client by client, and compares it with
training the evaluated subnets one by one (:func:`independent_cost`).

**Secure aggregation** is not implemented: the server sees each client's update. :class:`SecureAggregation` counts what
it would take (``cost_ledger.secure_aggregation``), so that its price with different architectures is known before
anybody builds it. What it would protect: the server, and who listens to it, would see sums over a cohort alone, as long
as not too many clients tell it their secrets. What it would not:

* which clients take part, and which architecture each of them trains: the server assigns it;
* elements that one client of the round alone has trained: their sum is that client's value. Methods with many
  architectures have more of them, and cohorts per architecture are smaller than the round's;
* what clients report beside weights: losses, accuracies, numbers of examples and steps, and a method's own
  :class:`~lit_fednas.messages.Report`;
* the sums and the trained weights themselves, from which one can still learn of single examples (differential privacy
  is about that).

And what looks at single updates could not work with it: ``faults.norm_bound``, ``aggregation.trim``, updates that are
rejected after they were sent, and the check that they are finite.
"""

from lit_fednas.costs.activations import peak_activation_bytes
from lit_fednas.costs.counting import Cost, count_macs, count_operations, count_parameters, sent_bytes
from lit_fednas.costs.latency import LatencySource, MeasuredLatency, measure
from lit_fednas.costs.latency_table import LatencyTable
from lit_fednas.costs.ledger import RoundCost, client_cost, independent_cost
from lit_fednas.costs.secure_aggregation import SecureAggregation

__all__ = [
    "Cost",
    "LatencySource",
    "LatencyTable",
    "MeasuredLatency",
    "RoundCost",
    "SecureAggregation",
    "client_cost",
    "count_macs",
    "count_operations",
    "count_parameters",
    "independent_cost",
    "measure",
    "peak_activation_bytes",
    "sent_bytes",
]
