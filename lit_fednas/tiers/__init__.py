"""Device tiers: what classes of devices afford, which clients belong to which, how fast their devices are.

Where clients differ in what they can afford, ``model.tiers`` divides them, and every part of a method respects the
tiers. A *source* says what they afford:

* :class:`Budgets`: numbers, several costs at once if you like.
* :class:`CumulativeCostTiers`: found from the search space (FedorAS, App. E.4).
* :class:`ArchitectureTiers`: what named architectures cost, as ``archs: {simple: smallest, complex: largest}``.
* :class:`Capacities`: levels between the weakest device, which can just run the smallest architecture, and the
  strongest (FedTrans).
* :class:`TiersOfRun`: the devices of another run.

An *allocation* says which clients belong to which tier: :class:`TierShares` (with ``shuffle: false`` the first clients
are of the first tier), :class:`ListedTiers`, :class:`TraceTiers` by the devices of a trace (:class:`CSVTrace`,
:class:`SyntheticTrace`), or :class:`MeasuredTiers` by what real devices measure. :class:`DeviceSpeeds` and
:class:`CompletionTimes` simulate how long clients take.

**FedorAS** trains a supernet of operators within the tiers:

```yaml
model:
  supernet: {class_path: lit_fednas.supernets.PathCNN}     # per layer a list of operators; a path is one of each
  tiers:
    source:
      class_path: lit_fednas.tiers.CumulativeCostTiers
      init_args: {count: 4, high: 0.95, cost: operations, ranges: true}
    allocation:
      class_path: lit_fednas.tiers.TierShares
      init_args: {shares: [0.4, 0.3, 0.2, 0.1]}
    unsupported: {tier1: [mb3_e2]}                         # operators that a tier's devices cannot run
  assignment: {class_path: lit_fednas.assignment.Subspaces, init_args: {share: 0.5}}   # communication budget
  objective: {class_path: lit_fednas.objectives.PathSampling}                          # a new path per batch
  aggregation: {class_path: lit_fednas.aggregation.OperatorAverage}                    # OPA
```

Its three stages, on digits:

```bash
lit-fednas fit --config configs/fedoras/digits.yaml
lit-fednas search --config configs/fedoras/digits.yaml --search.evaluations 60
lit-fednas finetune --config configs/fedoras/digits.yaml --config configs/fedoras/finetune/digits.yaml
```

* **No client exceeds its budget.** A client receives a subspace of operators, drawn for it alone, whose size fits the
  communication budget (Eq. 1). On it, it draws for every batch a path within its tier's limit (Eq. 2, 3); no draw is
  rejected. The limit may change while it trains (``PathSampling.load``). The ledger counts what was spent.
* **The search** takes the clients' tiers unless ``search.tiers`` names others.
* **Fairness.** With ``data.client_test: official`` (the test set, dealt out by the clients' own class proportions) or
  ``0.1`` (of their own examples), search and fine-tuning write ``clients.csv``: every client's accuracy on its own test
  data with its tier's network. ``lit_fednas.analysis`` has the table and the picture.
* **Labels that differ by tier** (App. H): ``PathCNN.label_sets`` and ``tiers.labels``; see
  the arms ``coarse labels`` and ``transfer`` of ``configs/studies/fedoras_variants.yaml``.
"""

from lit_fednas.tiers.limits import ArchitectureCosts, Tier
from lit_fednas.tiers.population import (
    Allocation,
    ClientTiers,
    ListedTiers,
    MeasuredTiers,
    Population,
    TierShares,
    TraceTiers,
)
from lit_fednas.tiers.simulated_time import (
    ClientSpeed,
    CompletionTimes,
    DeviceSpeeds,
    client_seconds,
    whole_round_seconds,
)
from lit_fednas.tiers.sources import ArchitectureTiers, Budgets, Capacities, CumulativeCostTiers, TiersOfRun, TierSource
from lit_fednas.tiers.traces import CSVTrace, DeviceTrace, SyntheticTrace

__all__ = [
    "Allocation",
    "ArchitectureCosts",
    "ArchitectureTiers",
    "Budgets",
    "CSVTrace",
    "Capacities",
    "ClientSpeed",
    "ClientTiers",
    "CompletionTimes",
    "CumulativeCostTiers",
    "DeviceSpeeds",
    "DeviceTrace",
    "ListedTiers",
    "MeasuredTiers",
    "Population",
    "SyntheticTrace",
    "Tier",
    "TierShares",
    "TierSource",
    "TiersOfRun",
    "TraceTiers",
    "client_seconds",
    "whole_round_seconds",
]
