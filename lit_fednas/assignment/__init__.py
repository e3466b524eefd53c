"""Assignment: which subnet each client trains in a round.

* :class:`FixedArchitecture`: everyone the same architecture (FedAvg).
* :class:`RandomArchitectures`: an architecture drawn for each client in each round.
* :class:`CostWeighted`: an architecture drawn for each client from a pool (:class:`WholeSpace`, a :class:`RisingPath`,
  those :class:`Listed`), the cheaper the more often.
* :class:`Sandwich`: one client the largest architecture, one the smallest, the others random ones.
* :class:`TrackingSandwich`: a sandwich whose largest and smallest architectures go to the clients that trained them
  least often (SuperFed).
* :class:`Subspaces`: the operators of every layer that fit a client's communication budget (FedorAS).
* :class:`ByTier`: the architecture of a client's device tier (FedHeN, HeteroFL, FjORD).
* :class:`RollingWidths`: the tier's width, from another first unit in each round (FedRolex).
* :class:`RandomBases`: as many base networks as the tier can train (SplitMix).
* :class:`InvariantUnits`: stragglers leave out the units that have stopped changing (FLuID).
* :class:`ByUtility` and :class:`ByOwnUtility`: a model that suits the client among those that fit its device
  (FedTrans).
* :class:`CandidateGroups`: the pruning candidate of a client's group (FedNAS).

**Depth and width by tier.** Clients of different tiers can train networks of different depth or width with shared
weights. Each of these methods is a composition of parts:

| method | supernet | assignment | objective | aggregation |
|---|---|---|---|---|
| FedHeN | ``EarlyExitResNet`` | ``ByTier`` | ``SideObjective`` | ``OverlapAverage`` |
| NoSide | ``EarlyExitResNet`` | ``ByTier`` | ``CrossEntropy`` | ``OverlapAverage`` |
| Decouple | ``SeparateExits`` | ``ByTier`` | ``CrossEntropy`` | ``OverlapAverage`` |
| HeteroFL | ``WidthSupernet`` | ``ByTier`` | ``MaskedCrossEntropy`` | ``ClassAverage`` |
| FjORD | ``WidthSupernet`` | ``ByTier`` | ``OrderedDropout`` | ``OverlapAverage`` |
| FedRolex | ``WidthSupernet`` | ``RollingWidths`` | ``CrossEntropy`` | ``OverlapAverage`` |
| SplitMix | ``BaseNetworks`` | ``RandomBases`` | ``IndependentBases`` | ``OverlapAverage`` |
| FLuID | ``WidthSupernet`` | ``InvariantUnits`` | ``UnitChanges`` | ``OverlapAverage`` |
| FedProx | any | any | ``Proximal`` around any | any |

HeteroFL also uses the supernet's ``scaler`` and static batch norm (``BatchNorm(running_statistics: false)``; the
statistics are gathered for every evaluation by ``evaluation.recalibrate_batches``), and ``RandomArchitectures`` where
levels are drawn anew in each round. ``SeparateNetworks`` decouples the architectures of any supernet.

```bash
lit-fednas fit --config configs/fedhen/digits.yaml
lit-fednas fit --config configs/width/digits.yaml
lit-fednas study studies/width_methods.yaml --arms FjORD --seeds 0
```

Every overlay goes with every configuration of its folder, and keeps its network and settings. ``iid``, ``stragglers``
(slow devices of a trace) and ``partial_work`` (``model.faults.straggler_rate``: fewer passes) go behind any method's.

To add an assignment, subclass :class:`Assignment` and implement ``plan``, which returns ``round.task(client, arch)``
for the clients of ``round.cohort``. A plan changes no state: what an assignment remembers from round to round changes
in ``observe`` alone and is its ``state_dict``, plain values. In YAML, a class of yours is
``class_path: my_package.MyAssignment``.
"""

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.basic import FixedArchitecture, RandomArchitectures
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.assignment.by_utility import ByOwnUtility, ByUtility
from lit_fednas.assignment.candidate_groups import CandidateGroups
from lit_fednas.assignment.cost_weighted import CostWeighted
from lit_fednas.assignment.invariant_units import InvariantUnits
from lit_fednas.assignment.pools import Listed, Pool, RisingPath, WholeSpace
from lit_fednas.assignment.random_bases import RandomBases
from lit_fednas.assignment.rolling import RollingWidths
from lit_fednas.assignment.sandwich import Sandwich, TrackingSandwich
from lit_fednas.assignment.subspaces import Subspaces

__all__ = [
    "Assignment",
    "ByOwnUtility",
    "ByTier",
    "ByUtility",
    "CandidateGroups",
    "CostWeighted",
    "FixedArchitecture",
    "InvariantUnits",
    "Listed",
    "Pool",
    "RandomArchitectures",
    "RandomBases",
    "RisingPath",
    "RollingWidths",
    "Round",
    "Sandwich",
    "Subspaces",
    "TrackingSandwich",
    "WholeSpace",
]
