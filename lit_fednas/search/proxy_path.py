"""DeepFedNAS' path of architectures: a pool for assignments, which a search finds before training."""

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
    """DeepFedNAS' path: within each of some limits the architecture that a proxy takes for the best.

    It is found at the start of every run, within seconds for a small supernet. For a large one let
    ``lit-fednas search`` write it (:class:`ProxySearch`), and give the file (``FromFile``).

    Args:
        budgets: The limits; as published, they are equally far apart.
        method: The search at each of them; its proxy may look at no data.
    """

    budgets: TierSource = field(default_factory=EvenBudgets)
    method: ProxySearch = field(default_factory=ProxySearch)

    @override
    def architectures(self, costs: ArchitectureCosts, cost: str) -> list[Any]:
        space, found = costs.supernet.space, []
        for tier in self.budgets.tiers(space, costs, numpy_generator(0, "path")):
            rng = numpy_generator(0, f"path-{tier.name}")
            found.append(self.method.plan(Feasible(space, costs, tier, rng), rng))
        return list(dict.fromkeys(found))
