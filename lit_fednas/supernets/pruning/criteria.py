"""Criteria that rank filters for pruning (FedNAS, section 4.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.pruning.filters import Prunable, sums_of_powers


class FilterCriterion(ABC):
    """Scores the filters of a group of units; those with the smallest scores leave first.

    Scores of filters that leave together, as a group norm has it, are added.

    The paper's is :class:`L2Norm`: "More advanced methods can be adopted to replace the magnitude-based method".
    """

    @abstractmethod
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        """Returns the score of each unit, ``[units]``, not negative.

        Args:
            prunable: Where the filters are.
            weights: The network's tensors, by name.
            group: The group of units.

        Raises:
            ConfigError: The group has nothing to be scored by.
        """


@dataclass(frozen=True)
class L2Norm(FilterCriterion):
    """The L2 norm of all weights that make a unit, squared (FedNAS, section 4.1; NetAdapt)."""

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        return sums_of_powers(prunable, weights, group, 2)


@dataclass(frozen=True)
class L1Norm(FilterCriterion):
    """The sum of the absolute weights that make a unit (Li et al., 2017, section 3.1)."""

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        return sums_of_powers(prunable, weights, group, 1)


@dataclass(frozen=True)
class NormScale(FilterCriterion):
    """The sum of a unit's absolute scales in the norms that it goes through (Liu et al., 2017, section 3: "gamma").

    Their training adds an L1 penalty on the scales, which this does not.
    """

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        names = prunable.scales[group]
        if not names:
            raise ConfigError(
                f"supernet.criterion: NormScale finds no norm with a scale behind the units {group!r}; set family.norm "
                f"to one with affine: true, name those groups in supernet.units that a norm follows, or use L2Norm"
            )
        return torch.stack([weights[name].detach().double().abs() for name in names]).sum(0)
