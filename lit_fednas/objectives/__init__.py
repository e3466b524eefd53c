"""What a client optimises locally."""

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.head_only import HeadOnly
from lit_fednas.objectives.loads import Load, NoLoad, RandomLoad, ScheduledLoad
from lit_fednas.objectives.path_sampling import PathSampling

__all__ = [
    "CrossEntropy",
    "HeadOnly",
    "Load",
    "NoLoad",
    "Objective",
    "PathSampling",
    "RandomLoad",
    "ScheduledLoad",
]
