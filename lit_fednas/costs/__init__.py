"""What architectures cost: multiply-accumulates, parameters, bytes."""

from lit_fednas.costs.counting import Cost, count_cost, count_macs

__all__ = ["Cost", "count_cost", "count_macs"]
