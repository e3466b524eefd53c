"""Assignment: which subnet each client trains."""

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.basic import FixedArchitecture, RandomArchitectures
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.assignment.by_utility import ByOwnUtility, ByUtility
from lit_fednas.assignment.candidate_groups import CandidateGroups
from lit_fednas.assignment.invariant_units import InvariantUnits
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
    "FixedArchitecture",
    "InvariantUnits",
    "RandomArchitectures",
    "RandomBases",
    "RollingWidths",
    "Round",
    "Sandwich",
    "Subspaces",
    "TrackingSandwich",
]
