"""How the examples are dealt out to clients."""

from lit_fednas.data.partitioners.base import Partition, Partitioner
from lit_fednas.data.partitioners.by_column import ByColumn
from lit_fednas.data.partitioners.dirichlet import BalancedDirichlet, Dirichlet
from lit_fednas.data.partitioners.shards import IID, Shards

__all__ = ["IID", "BalancedDirichlet", "ByColumn", "Dirichlet", "Partition", "Partitioner", "Shards"]
