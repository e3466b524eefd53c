"""Who trains which part this round."""

from lit_fednas.assignment.base import Assignment
from lit_fednas.assignment.fixed import FixedArchitecture
from lit_fednas.assignment.random import RandomArchitectures
from lit_fednas.assignment.sandwich import Sandwich, TrackingSandwich
from lit_fednas.assignment.subspaces import Subspaces

__all__ = ["Assignment", "FixedArchitecture", "RandomArchitectures", "Sandwich", "Subspaces", "TrackingSandwich"]
