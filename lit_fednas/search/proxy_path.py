"""DeepFedNAS' path of architectures: a pool for assignments from a search before training."""

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from lit_fednas.assignment import Pool
from lit_fednas.ranges import checked
from lit_fednas.rng import numpy_generator
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.proxy_search import ProxySearch
from lit_fednas.tiers import ArchitectureCosts, EvenBudgets, TierSource


@checked("assignment.pool")
@dataclass(frozen=True)
class ProxyPath(Pool):
    """DeepFedNAS' path: for each of some limits the best architecture by a proxy.

    Every run computes it at its start, within seconds for a small supernet. For a large one let ``lit-fednas search``
    write it (:class:`ProxySearch`), and give the file (``FromFile``).

    Args:
        budgets: The limits; evenly spaced by default, as published.
        method: The search within each limit; its proxy has no data.
    """

    budgets: TierSource = field(default_factory=EvenBudgets)
    method: ProxySearch = field(default_factory=ProxySearch)

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, archs = costs.supernet.space, []
        for tier in self.budgets.tiers(space, costs, numpy_generator(0, "path")):
            rng = numpy_generator(0, f"path-{tier.name}")
            archs.append(self.method.plan(Feasible(space, costs, tier, rng), rng))
        return list(dict.fromkeys(archs))
