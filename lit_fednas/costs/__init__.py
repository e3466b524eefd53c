"""What architectures, rounds and runs cost: multiply-accumulates, parameters, bytes, memory, time."""

from lit_fednas.costs.activations import peak_activation_bytes
from lit_fednas.costs.counting import Cost, count_cost, count_macs, count_operations, sent_bytes
from lit_fednas.costs.devices import DeviceProfile
from lit_fednas.costs.latency import Latency, LatencySource, MeasuredLatency, measure
from lit_fednas.costs.latency_table import LatencyTable
from lit_fednas.costs.ledger import RoundCost, client_cost, independent_cost
from lit_fednas.costs.round_time import ClientSpeed, CompletionTimes, client_seconds, whole_round_seconds

__all__ = [
    "ClientSpeed",
    "CompletionTimes",
    "Cost",
    "DeviceProfile",
    "Latency",
    "LatencySource",
    "LatencyTable",
    "MeasuredLatency",
    "RoundCost",
    "client_cost",
    "client_seconds",
    "count_cost",
    "count_macs",
    "count_operations",
    "independent_cost",
    "measure",
    "peak_activation_bytes",
    "sent_bytes",
    "whole_round_seconds",
]
