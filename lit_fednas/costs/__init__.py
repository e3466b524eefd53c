"""Costs of architectures, rounds and runs: multiply-accumulates, parameters, bytes, memory, latency.

Costs are counted on the network that a client receives, not estimated. The guide *Costs* helps to choose a source of
latency, and describes the protection that secure aggregation would give.
"""

from lit_fednas.costs.counting import (
    Cost,
    RoundCost,
    client_cost,
    count_macs,
    count_operations,
    count_parameters,
    independent_cost,
    peak_activation_bytes,
    sent_bytes,
)
from lit_fednas.costs.latency import LatencySource, LatencyTable, MeasuredLatency, measure

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
