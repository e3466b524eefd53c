"""What architectures, rounds and runs cost: multiply-accumulates, parameters, bytes."""

from lit_fednas.costs.counting import Cost, count_cost, count_macs
from lit_fednas.costs.ledger import RoundCost, client_cost, independent_cost

__all__ = ["Cost", "RoundCost", "client_cost", "count_cost", "count_macs", "independent_cost"]
