"""Normalisation layers for weights that are shared, and for clients whose data differ.

A subnet's channels have other batch statistics than the largest network's, and a client's other than everyone's
(Hsieh et al., 2020): so they are not used (:class:`GroupNorm`), averaged, or gathered again before an evaluation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, UnitInterval, checked


class Norm(ABC):
    """Makes the normalisation layer for a number of channels.

    Attributes:
        multiple: The number of which every number of channels must be a multiple.
        affine: Whether its layers have a scale and a shift.
    """

    multiple: int
    affine: bool

    @abstractmethod
    def __call__(self, channels: int) -> nn.Module:
        """Returns a layer for ``[batch, channels, h, w]``; raises ``ConfigError`` if channels are no multiple."""


@checked("norm")
@dataclass(frozen=True)
class GroupNorm(Norm):
    """Group normalisation, without batch statistics (FedHeN).

    Groups have a fixed size, so that a narrower subnet has fewer of them, which normalise the same channels everywhere.

    Args:
        group_size: Channels per group; every width must be a multiple of it.

    Raises:
        ConfigError: The group size is not positive.

    Example:
        >>> GroupNorm(8)(32).num_groups
        4
    """

    group_size: PositiveInt = 8

    affine = True

    @property
    @override
    def multiple(self) -> int:  # type: ignore[override]
        return self.group_size

    @override
    def __call__(self, channels: int) -> nn.Module:
        if channels % self.group_size:
            raise ConfigError(
                f"norm.group_size: {self.group_size} does not divide a width of {channels} channels; choose a "
                f"divisor of all widths"
            )
        return nn.GroupNorm(channels // self.group_size, channels)


@checked("norm")
@dataclass(frozen=True)
class BatchNorm(Norm):
    """Batch normalisation.

    Args:
        affine: Whether scale and shift are learned.
        running_statistics: Whether means and variances are tracked in training, averaged as buffers (FedorAS) and
            used in evaluation. Else evaluation uses the batch's, unless they are recalibrated on a copy of the subnet.
        momentum: Weight of the newest batch in the running statistics.

    Raises:
        ConfigError: The momentum is not between 0 and 1.

    Example:
        >>> layer = BatchNorm(affine=False, running_statistics=False)(16)
        >>> len(list(layer.parameters())) + len(list(layer.buffers()))
        0
    """

    affine: bool = True
    running_statistics: bool = True
    momentum: UnitInterval = 0.1

    multiple = 1

    @override
    def __call__(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(
            channels, momentum=self.momentum, affine=self.affine, track_running_stats=self.running_statistics
        )


@dataclass(frozen=True)
class NoNorm(Norm):
    """No normalisation, as in SuperFed's published code; clip gradients (``client.clip_norm``) to train with it.

    Example:
        >>> NoNorm()(16)
        Identity()
    """

    multiple = 1
    affine = False

    @override
    def __call__(self, channels: int) -> nn.Module:
        return nn.Identity()
