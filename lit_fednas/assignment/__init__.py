"""Who trains which part this round."""

from lit_fednas.assignment.base import Assignment, Part
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.assignment.by_utility import ByUtility
from lit_fednas.assignment.candidate_groups import CandidateGroups
from lit_fednas.assignment.fixed import FixedArchitecture
from lit_fednas.assignment.invariant_units import InvariantUnits
from lit_fednas.assignment.random import RandomArchitectures
from lit_fednas.assignment.random_bases import RandomBases
from lit_fednas.assignment.rolling import RollingWidths
from lit_fednas.assignment.sandwich import Sandwich, TrackingSandwich
from lit_fednas.assignment.subspaces import Subspaces

__all__ = [
    "Assignment",
    "ByTier",
    "ByUtility",
    "CandidateGroups",
    "FixedArchitecture",
    "InvariantUnits",
    "Part",
    "RandomArchitectures",
    "RandomBases",
    "RollingWidths",
    "Sandwich",
    "Subspaces",
    "TrackingSandwich",
]
