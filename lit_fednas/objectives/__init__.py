"""Objectives: the local losses of clients. The guide *Assignments* composes them into methods.

To add one, subclass :class:`Objective` and implement ``loss``; to extend any other one, :class:`WrappedObjective`.
"""

from lit_fednas.objectives.base import CrossEntropy, Objective, TaskLoss
from lit_fednas.objectives.differentiable_search import DifferentiableSearch
from lit_fednas.objectives.independent_bases import IndependentBases
from lit_fednas.objectives.masked_cross_entropy import MaskedCrossEntropy
from lit_fednas.objectives.ordered_dropout import OrderedDropout
from lit_fednas.objectives.path_sampling import PathSampling
from lit_fednas.objectives.proximal import Proximal
from lit_fednas.objectives.side_objective import SideObjective
from lit_fednas.objectives.unit_changes import UnitChanges
from lit_fednas.objectives.wrapped import WrappedObjective

__all__ = [
    "CrossEntropy",
    "DifferentiableSearch",
    "IndependentBases",
    "MaskedCrossEntropy",
    "Objective",
    "OrderedDropout",
    "PathSampling",
    "Proximal",
    "SideObjective",
    "TaskLoss",
    "UnitChanges",
    "WrappedObjective",
]
