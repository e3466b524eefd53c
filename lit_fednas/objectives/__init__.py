"""Objectives: what a client optimises locally."""

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy, MaskedCrossEntropy
from lit_fednas.objectives.head_only import HeadOnly
from lit_fednas.objectives.independent_bases import IndependentBases
from lit_fednas.objectives.ordered_dropout import OrderedDropout
from lit_fednas.objectives.path_sampling import Load, NoLoad, PathSampling, RandomLoad
from lit_fednas.objectives.proximal import Proximal
from lit_fednas.objectives.side_objective import SideObjective
from lit_fednas.objectives.unit_changes import UnitChanges
from lit_fednas.objectives.wrapped import WrappedObjective

__all__ = [
    "CrossEntropy",
    "HeadOnly",
    "IndependentBases",
    "Load",
    "MaskedCrossEntropy",
    "NoLoad",
    "Objective",
    "OrderedDropout",
    "PathSampling",
    "Proximal",
    "RandomLoad",
    "SideObjective",
    "UnitChanges",
    "WrappedObjective",
]
