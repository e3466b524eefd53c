"""What architectures, rounds and runs cost: multiply-accumulates, parameters, bytes, memory, latency."""

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
