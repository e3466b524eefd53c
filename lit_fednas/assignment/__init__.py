"""Assignment: which subnet each client trains in a round.

To add one, subclass :class:`Assignment` and implement ``plan``, which returns ``round.task(client, arch)`` for the
clients of ``round.cohort``. The guide *Assignments* lists the methods.
"""

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.assignment.by_model import ByOwnUtility, ByUtility, CandidateGroups
from lit_fednas.assignment.by_tier import ByTier, InvariantUnits, RandomBases, RollingWidths
from lit_fednas.assignment.drawn import (
    CostWeighted,
    FromFile,
    Listed,
    Pool,
    PoolLimit,
    PoolOfTiers,
    RisingPath,
    Subspaces,
    WholeSpace,
)
from lit_fednas.assignment.sandwich import FixedArchitecture, RandomArchitectures, Sandwich, TrackingSandwich

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
