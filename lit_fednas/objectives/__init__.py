"""What a client optimises locally."""

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy

__all__ = ["CrossEntropy", "Objective"]
