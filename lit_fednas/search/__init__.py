"""After training: the best network for every device tier.

A search takes the weights as they are and evaluates subnets in place, on the server's validation data; test data are
first touched when it is over.

```bash
lit-fednas search --config X.yaml --config configs/search/digits.yaml   # searches the newest run's supernet
```

```yaml
search:
  tiers:                    # limits per class of devices, several at once if you like
    class_path: lit_fednas.tiers.Budgets
    init_args:
      budgets:
        small: {macs: 0.8e+6}
        large: {macs: 2.5e+6, memory_bytes: 2.0e+6}
  method:
    class_path: lit_fednas.search.NSGA2
    init_args: {population: 128, sample: 64}
  evaluations: 1000         # distinct architectures that fit, per tier
```

* **Methods**: :class:`NSGA2` (pymoo's), :class:`Evolution` (SuperFed, App. I), :class:`RandomSearch`,
  :class:`Exhaustive`, and :class:`DeriveGenotype` for cells.
* **Tiers** (``lit_fednas.tiers``) are those of the clients, unless ``search.tiers`` names others. Limits may be on
  ``macs``, ``parameters``, ``bytes``, ``activation_bytes`` (the peak of one example), ``memory_bytes`` (both together),
  ``operations`` (FedorAS' count of FLOPs) and ``latency_ms``, for which ``search.latency`` names a source
  (``lit_fednas.costs``). ``search.cost`` is the objective beside the metric.
* **Infeasible architectures are repaired before evaluation**, not thrown away. So narrow tiers do not stall, and
  methods can be compared by their numbers of evaluations.
* **A search that was stopped goes on** when the same command is given again, and finds what it would have found; more
  ``evaluations`` may be asked for later.
* **Racing** (``search.racing: {}``) scores an architecture on growing parts of the validation data, and drops it once
  it is clear, with a stated confidence for the whole search, that another of no higher cost is better
  (``lit_fednas.search.racing``). ``evaluations`` is then what may be spent, on more architectures, and cannot be raised
  later. ``scripts/racing`` shows for a trained run what is saved, and whether anything of a front is dropped.
* **Several processes share a search** (``--trainer.devices 2 --trainer.threads 1``), and find what one finds.
* **Clients can score instead of the server** (FedorAS, section 4.7): with ``search.federated: {rounds: 4}`` and
  ``data.client_val``, the smallest supernet of each generation goes to that many cohorts of the tier and above, and
  ``data.server_val: 0`` is enough. ``search/federated.csv`` and ``ledger.json`` count it.
* **A client can search for itself** (SuperFed, App. I): ``--search.client 3 --search.name client3`` scores on that
  client's own ``data.client_val`` examples, for its tier or the limits in ``search.tiers``.
* **Norms that use the batch's own statistics** (the default of ``ElasticResNet``) make a network depend on its batch.
  So every subnet is given statistics of 20 batches of the clients' training data before it is evaluated
  (``--model.evaluation.recalibrate_batches``), and the tiers' networks keep them.

To add a method, write a frozen dataclass that subclasses :class:`SearchMethod`, with one generator, ``search``, which
yields architectures and is sent their scores; :class:`RandomSearch` is the shortest.
"""

from lit_fednas.search.command import Search
from lit_fednas.search.derive import DeriveGenotype
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.search.evolution import Evolution
from lit_fednas.search.feasible import Feasible
from lit_fednas.search.federated import ClientDraw, FederatedEvaluation, FederatedEvaluator, union_bytes
from lit_fednas.search.method import Exhaustive, Proposals, RandomSearch, Score, SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.search.racing import Racing
from lit_fednas.search.tier_search import SearchSettings, TierSearch

__all__ = [
    "NSGA2",
    "ClientDraw",
    "DeriveGenotype",
    "Evaluator",
    "Evolution",
    "Exhaustive",
    "Feasible",
    "FederatedEvaluation",
    "FederatedEvaluator",
    "Proposals",
    "Racing",
    "RandomSearch",
    "Score",
    "Search",
    "SearchMethod",
    "SearchSettings",
    "TierSearch",
    "union_bytes",
]
