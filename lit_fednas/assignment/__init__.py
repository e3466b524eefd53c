"""Assignment: which subnet each client trains in a round.

To add one, subclass :class:`Assignment` and implement ``plan``, which returns ``round.task(client, arch)`` for the
clients of ``round.cohort``. The guide *Assignments* lists the methods.
"""

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.by_tier import ByTier, RandomBases, RollingWidths
from lit_fednas.assignment.by_utility import ByOwnUtility, ByUtility
from lit_fednas.assignment.candidate_groups import CandidateGroups
from lit_fednas.assignment.cost_weighted import CostWeighted, Listed, Pool, RisingPath, WholeSpace
from lit_fednas.assignment.invariant_units import InvariantUnits
from lit_fednas.assignment.sandwich import FixedArchitecture, RandomArchitectures, Sandwich, TrackingSandwich
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
