"""What architectures, rounds and runs cost: multiply-accumulates, parameters, bytes, memory, latency.

:class:`Cost` has what one architecture costs: ``macs`` of one example, ``parameters``, and ``bytes`` as they are sent.
:func:`peak_activation_bytes` is the memory that activations take at most while one example runs. Costs are counted on
the network that a client really receives, not estimated: a subnet has small tensors of its own.

Latency needs a source. :class:`MeasuredLatency` times networks on the machine at hand, warmed up, as the median of
many. :class:`LatencyTable` measures layers one by one and adds them up, and says how far it is from measurements of
whole networks; it can be saved, and used where the device is not at hand.

The callback ``CostLedger`` adds up what a run costs (:class:`RoundCost`), client by client, and compares it with
training the evaluated subnets one by one (:func:`independent_cost`).
"""

from lit_fednas.costs.activations import peak_activation_bytes
from lit_fednas.costs.counting import Cost, count_macs, count_operations, count_parameters, sent_bytes
from lit_fednas.costs.latency import LatencySource, MeasuredLatency, measure
from lit_fednas.costs.latency_table import LatencyTable
from lit_fednas.costs.ledger import RoundCost, client_cost, independent_cost

__all__ = [
    "Cost",
    "LatencySource",
    "LatencyTable",
    "MeasuredLatency",
    "RoundCost",
    "client_cost",
    "count_macs",
    "count_operations",
    "count_parameters",
    "independent_cost",
    "measure",
    "peak_activation_bytes",
    "sent_bytes",
]
