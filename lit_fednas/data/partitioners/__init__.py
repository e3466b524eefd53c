"""How the examples are dealt out to clients: one partitioner per file."""

from lit_fednas.data.partitioners.balanced_dirichlet import BalancedDirichlet
from lit_fednas.data.partitioners.base import Partitioner
from lit_fednas.data.partitioners.by_column import ByColumn
from lit_fednas.data.partitioners.dirichlet import Dirichlet
from lit_fednas.data.partitioners.iid import IID
from lit_fednas.data.partitioners.shards import Shards

__all__ = ["IID", "BalancedDirichlet", "ByColumn", "Dirichlet", "Partitioner", "Shards"]
