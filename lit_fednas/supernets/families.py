"""Families of networks: one structure that can be built with any number of units per group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.norms import GroupNorm, Norm


class NetworkFamily(ABC):
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


#: For every dimension of a tensor: the group whose units it has, and how many adjacent entries one unit takes.
Axes = tuple[tuple[str | None, int], ...]


def find_axes(
    build: Callable[[Mapping[str, int]], nn.Module], units: Mapping[str, int], multiple: int, name: str
) -> dict[str, Axes]:
    """Lets one group grow at a time, and looks which dimensions grow with it and by how much.

    Args:
        build: Makes the network of given numbers of units; it is called on the meta device.
        units: The groups and their numbers of units.
        multiple: By how many units a group is let grow.
        name: Of what is built, for the error.

    Returns:
        For every tensor, by name, what each dimension has: ``(None, 1)`` where it belongs to no group.

    Raises:
        ConfigError: A dimension grows with two groups, or has entries that do not.
    """
    with torch.device("meta"):
        shapes = shapes_of(build(units))
    found: dict[str, list[tuple[str | None, int]]] = {
        tensor: [(None, 1)] * len(shape) for tensor, shape in shapes.items()
    }
    for group, full in units.items():
        with torch.device("meta"):
            grown = shapes_of(build({**units, group: full + multiple}))
        for tensor, shape in shapes.items():
            for place, (before, after) in enumerate(zip(shape, grown[tensor], strict=True)):
                if after == before:
                    continue
                other, repeat = found[tensor][place][0], (after - before) // multiple
                if other is not None or before != full * repeat:
                    raise ConfigError(
                        f"supernet.family: dimension {place} of {tensor} in {name} has "
                        f"{before} entries and grows with {group} by {after - before}"
                        + (f", but with {other} as well" if other else "")
                        + "; every dimension must belong to one group as a whole"
                    )
                found[tensor][place] = (group, repeat)
    return {tensor: tuple(axes) for tensor, axes in found.items()}


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, parameters first."""
    return {name: tuple(tensor.shape) for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
