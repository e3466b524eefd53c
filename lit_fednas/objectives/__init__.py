"""Objectives: what a client optimises locally."""

from lit_fednas.objectives.architecture_gradients import ArchitectureGradient, FirstOrder, MixedLevel, SecondOrder
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy, MaskedCrossEntropy, TaskLoss
from lit_fednas.objectives.differentiable_search import DifferentiableSearch
from lit_fednas.objectives.head_only import HeadOnly
from lit_fednas.objectives.independent_bases import IndependentBases
from lit_fednas.objectives.ordered_dropout import OrderedDropout
from lit_fednas.objectives.path_sampling import Load, NoLoad, PathSampling, RandomLoad
from lit_fednas.objectives.proximal import Proximal
from lit_fednas.objectives.side_objective import SideObjective
from lit_fednas.objectives.unit_changes import UnitChanges
from lit_fednas.objectives.wrapped import WrappedObjective

__all__ = [
    "ArchitectureGradient",
    "CrossEntropy",
    "DifferentiableSearch",
    "FirstOrder",
    "HeadOnly",
    "IndependentBases",
    "Load",
    "MaskedCrossEntropy",
    "MixedLevel",
    "NoLoad",
    "Objective",
    "OrderedDropout",
    "PathSampling",
    "Proximal",
    "RandomLoad",
    "SecondOrder",
    "SideObjective",
    "TaskLoss",
    "UnitChanges",
    "WrappedObjective",
]
