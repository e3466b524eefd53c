"""The criteria are in :mod:`lit_fednas.supernets.pruning.filters`."""

from lit_fednas.supernets.pruning.filters import FilterCriterion, L1Norm, L2Norm, NormScale

__all__ = ["FilterCriterion", "L1Norm", "L2Norm", "NormScale"]
