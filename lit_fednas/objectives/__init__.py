"""Objectives: what a client optimises locally.

* :class:`TaskLoss`: the loss of the data's task.
* :class:`CrossEntropy`: cross-entropy, with label smoothing.
* :class:`PathSampling`: a new path for every batch, within the client's operators and its tier's budget (FedorAS).
* :class:`SideObjective`: the losses of all exits that the client's network holds (FedHeN).
* :class:`MaskedCrossEntropy`: cross-entropy without the classes that the client does not have (HeteroFL).
* :class:`OrderedDropout`: a new width for every batch, up to the client's own (FjORD).
* :class:`IndependentBases`: the loss of each base network by itself (SplitMix).
* :class:`UnitChanges`: another objective, and a report of how far each unit's weights moved (FLuID).
* :class:`DifferentiableSearch`: steps of architecture parameters and of weights in turns (DARTS, MiLeNAS).
* :class:`Proximal`: another objective, plus the squared distance to the weights that were received (FedProx).
* :class:`HeadOnly`: another objective, for one module alone, such as the classifier.

To add one, subclass :class:`Objective` and implement ``loss``; subclass :class:`WrappedObjective` if it adds to
another.
"""

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy, MaskedCrossEntropy, TaskLoss
from lit_fednas.objectives.differentiable_search import (
    ArchitectureGradient,
    DifferentiableSearch,
    FirstOrder,
    MixedLevel,
    SecondOrder,
)
from lit_fednas.objectives.outputs import IndependentBases, SideObjective
from lit_fednas.objectives.path_sampling import Load, NoLoad, PathSampling, RandomLoad
from lit_fednas.objectives.widths import OrderedDropout, UnitChanges
from lit_fednas.objectives.wrapped import HeadOnly, Proximal, WrappedObjective

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
