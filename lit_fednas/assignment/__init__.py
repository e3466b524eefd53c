"""Assignments, which choose the subnet that each client trains in a round.

To add one, subclass :class:`Assignment` and implement ``plan``, which returns ``round.task(client, arch)`` for the
clients of ``round.cohort``. The guide *Assignments* lists the methods.
"""

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.assignment.by_utility import ByOwnUtility, ByUtility
from lit_fednas.assignment.candidate_groups import CandidateGroups
from lit_fednas.assignment.cost_weighted import CostWeighted
from lit_fednas.assignment.fixed_architecture import FixedArchitecture
from lit_fednas.assignment.invariant_units import InvariantUnits
from lit_fednas.assignment.pools import FromFile, Listed, Pool, PoolLimit, PoolOfTiers, RisingPath, WholeSpace
from lit_fednas.assignment.random_bases import RandomBases
from lit_fednas.assignment.rolling_widths import RollingWidths
from lit_fednas.assignment.sandwich import RandomArchitectures, Sandwich, TrackingSandwich
from lit_fednas.assignment.subspaces import Subspaces

__all__ = [
    "Assignment",
    "ByOwnUtility",
    "ByTier",
    "ByUtility",
    "CandidateGroups",
    "CostWeighted",
    "FixedArchitecture",
    "FromFile",
    "InvariantUnits",
    "Listed",
    "Pool",
    "PoolLimit",
    "PoolOfTiers",
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
