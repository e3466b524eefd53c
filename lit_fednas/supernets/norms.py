"""Normalisation layers for weights that are shared, and for clients whose data differ.

Batch statistics are a known problem of both: a subnet's channels see other statistics than the largest
network's, and a client's other than everyone's (Hsieh et al., 2020). The choices:

* :class:`GroupNorm`: no batch statistics at all (FedHeN). Groups have a fixed *size*, so that a narrower
  subnet has fewer groups and each group normalises the same channels in every subnet.
* :class:`BatchNorm` with running statistics, which are averaged as buffers (FedorAS).
* :class:`BatchNorm` with ``running_statistics=False``: batch statistics only, also in evaluation, unless they
  are recalibrated on a copy of the subnet before it is evaluated. With ``affine=False`` in addition nothing
  of the layer is shared: what SuperFed's authors train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, UnitInterval, checked


class Norm(ABC):
    """Makes the normalisation layer for a number of channels."""

    @abstractmethod
    def __call__(self, channels: int) -> nn.Module:
        """Returns a fresh layer."""


@checked("norm")
@dataclass(frozen=True)
class GroupNorm(Norm):
    """Group normalisation with groups of a fixed size.

    Args:
        group_size: Channels per group; every width must be a multiple of it.

    Example:
        >>> GroupNorm(8)(32).num_groups
        4
    """

    group_size: PositiveInt = 8

    def __call__(self, channels: int) -> nn.Module:
        """Returns a ``torch.nn.GroupNorm``.

        Raises:
            ConfigError: The width is not a multiple of the group size.
        """
        if channels % self.group_size:
            raise ConfigError(
                f"norm.group_size: {self.group_size} does not divide a width of {channels} channels; "
                f"choose a divisor of all widths"
            )
        return nn.GroupNorm(channels // self.group_size, channels)


@checked("norm")
@dataclass(frozen=True)
class BatchNorm(Norm):
    """Batch normalisation.

    Args:
        affine: Whether scale and shift are learned.
        running_statistics: Whether means and variances are tracked in training, averaged as buffers and used
            in evaluation. Without them, evaluation uses the batch's own.
        momentum: Weight of the newest batch in the running statistics.

    Example:
        >>> layer = BatchNorm(affine=False, running_statistics=False)(16)
        >>> len(list(layer.parameters())) + len(list(layer.buffers()))
        0
    """

    affine: bool = True
    running_statistics: bool = True
    momentum: UnitInterval = 0.1

    def __call__(self, channels: int) -> nn.Module:
        """Returns a ``torch.nn.BatchNorm2d``."""
        return nn.BatchNorm2d(
            channels,
            affine=self.affine,
            track_running_stats=self.running_statistics,
            momentum=self.momentum,
        )
