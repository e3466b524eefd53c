"""Families of networks that differ in width alone: what one has to say, and what several share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.norms import GroupNorm, Norm


class WidthFamily(ABC):
    """Networks of one structure and any width.

    Units that are cut together form a group: the output channels of a convolution with the input channels of the
    next, all outputs of blocks that are added up, an embedding, the heads of a layer. Which dimension of which
    tensor belongs to which group, the supernet finds out by itself.
    """

    @property
    def multiple(self) -> int:
        """What the number of units of every group must be a multiple of."""
        return 1

    @abstractmethod
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The groups and their full numbers of units.

        Raises:
            ConfigError: The family cannot take such inputs.
        """

    @abstractmethod
    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds a network; its modules and tensors have the same names for all sizes.

        Args:
            sizes: Units per group.
            input_shape: Shape of one example.
            num_classes: Width of the output, which is never cut.
            scale: What the scalers divide by in training; 1 for nothing.
        """


def check_image(family: object, input_shape: Sequence[int], least: int = 1) -> None:
    """Raises ``ConfigError`` if inputs are no images, or smaller than ``least`` pixels in height or width."""
    name = type(family).__name__
    if len(input_shape) != 3:
        raise ConfigError(f"supernet.input_shape: {list(input_shape)} must be channels, height, width for {name}")
    if min(input_shape[1:]) < least:
        raise ConfigError(
            f"supernet.input_shape: {input_shape[1]}x{input_shape[2]} pixels are too few for {name}, which "
            f"needs {least}x{least} or more"
        )


def check_positive(family: object, **settings: int | Sequence[int]) -> None:
    """Raises ``ConfigError`` if a setting, or one of its numbers, is missing or below 1."""
    for name, value in settings.items():
        numbers = [value] if isinstance(value, int) else list(value)
        if not numbers or min(numbers) < 1:
            raise ConfigError(f"supernet.family.{name}: {value} of {type(family).__name__} must be at least 1")


def check_layer(dim: int, heads: int, mlp_ratio: float) -> None:
    """Raises ``ConfigError`` if a transformer's layer cannot have these heads and hidden units."""
    if dim % heads:
        raise ConfigError(f"supernet.family.heads: {heads} must divide dim, {dim}")
    if round(mlp_ratio * dim) < 1:
        raise ConfigError(f"supernet.family.mlp_ratio: {mlp_ratio} leaves no hidden units; give more")


def norm_layer(norm: Norm | None, channels: int) -> nn.Module:
    """The normalisation layer; nothing where there is none."""
    return nn.Identity() if norm is None else norm(channels)


def norm_multiple(norm: Norm | None) -> int:
    """What numbers of channels must be a multiple of: a group norm's group size."""
    return norm.group_size if isinstance(norm, GroupNorm) else 1
