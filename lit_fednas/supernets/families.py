"""Families of networks that are cut in width, lose filters or grow: one structure, any number of units per group."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from typing_extensions import override

from lit_fednas.costs.counting import on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.layers import Norm

#: For every dimension of a tensor: the group whose units it has, and how many adjacent entries one unit takes;
#: ``(None, 1)`` where it belongs to no group.
Axes = tuple[tuple[str | None, int], ...]
#: The numbers of units by group.
Sizes = Mapping[str, int]
ROUNDING = 1e-9  # 0.1 * 30 is a little above 3, and three units are meant


class NetworkFamily(ABC):
    """Networks of one structure, with any number of units per group.

    Units that are cut or grow together form a group: the output channels of a convolution with the input channels
    of the next, all outputs of blocks that are added up, the heads of a layer. Which dimension of which tensor belongs
    to which group is found by building networks.
    """

    #: Normalisation layer of the networks, where there is one.
    norm: Norm | None = None
    #: Type of the inputs: int64 where they are tokens.
    input_dtype = torch.float32

    @property
    def multiple(self) -> int:
        """The number of which every group's units must be a multiple: a group norm's group size."""
        return 1 if self.norm is None else self.norm.multiple

    @abstractmethod
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """Returns the groups and their full numbers of units; raises ``ConfigError`` for inputs that do not fit."""

    @abstractmethod
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        """Builds a network; its modules and tensors have the same names for all sizes.

        Args:
            sizes: Units per group.
            input_shape: Shape of one example.
            num_classes: Width of the output, which is never cut.
            scale: What the scalers divide by in training; 1 for nothing, and for networks without scalers.
        """


@dataclass(frozen=True)
class UngroupedFamily(NetworkFamily):
    """A family with ordinary convolutions for grouped ones (FedTrans, App. A.1, for HeteroFL and SplitMix).

    The weights of these are drawn anew.

    Args:
        family: The networks.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedMobileNet
        >>> family = UngroupedFamily(SlicedMobileNet(channels=(8, 16), strides=(1, 1)))
        >>> family.build({"conv0": 4, "conv1": 8}, (3, 8, 8), 10).conv1.depthwise.conv.weight.shape
        torch.Size([4, 4, 3, 3])
    """

    family: NetworkFamily

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", self.family.norm)
        object.__setattr__(self, "input_dtype", self.family.input_dtype)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return self.family.units(input_shape)

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        network = self.family.build(sizes, input_shape, num_classes, scale)
        for module in network.modules():
            if isinstance(module, _ConvNd) and module.groups > 1:
                channels = (module.in_channels, module.out_channels)[:: 1 if module.transposed else -1]
                weight = module.weight.new_empty((*channels, *module.kernel_size))
                module.groups, module.weight = 1, nn.Parameter(weight, module.weight.requires_grad)
                module.reset_parameters()
        return network


def multiplied(units: Sizes, ratio: float, multiple: int = 1) -> dict[str, int]:
    """Returns a ratio, above 0 and up to 1, of every group's units, rounded up to a multiple."""
    return {
        group: min(full, multiple * max(1, ceil(ratio * full / multiple - ROUNDING))) for group, full in units.items()
    }


def divisible(value: float, divisor: int) -> int:
    """Returns the multiple of ``divisor`` nearest to a width, at least one divisor and not below 90 %."""
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


def find_axes(build: Callable[[Sizes], nn.Module], units: Sizes, multiple: int, name: str) -> dict[str, Axes]:
    """Returns the axes of every tensor by name, found by letting one group grow at a time."""
    shapes = shapes_of(on_meta(build, units))
    axes: dict[str, list[tuple[str | None, int]]] = {
        tensor: [(None, 1)] * len(shape) for tensor, shape in shapes.items()
    }
    for group, full in units.items():
        grown = shapes_of(on_meta(build, {**units, group: full + multiple}))
        for tensor, shape in shapes.items():
            for dimension, (size, larger) in enumerate(zip(shape, grown[tensor], strict=True)):
                if larger == size:
                    continue
                other, repeat = axes[tensor][dimension][0], (larger - size) // multiple
                if other is not None or size != full * repeat:
                    raise ConfigError(
                        f"supernet.family: dimension {dimension} of {tensor} in {name} has "
                        f"{size} entries and grows with {group} by {larger - size}"
                        + (f", but with {other} as well" if other else "")
                        + "; every dimension must belong to one group as a whole"
                    )
                axes[tensor][dimension] = (group, repeat)
    return {tensor: tuple(dimensions) for tensor, dimensions in axes.items()}


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Returns all parameters, then all buffers, by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors by name, parameters first."""
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(network).items()}


def entries_of(units: Tensor, repeat: int) -> Tensor:
    """Returns the entries, ``[units * repeat]``, of units along a dimension in which each takes ``repeat``."""
    return (units[:, None] * repeat + torch.arange(repeat, device=units.device)).flatten()


def check_image(network: object, input_shape: Sequence[int], least: int = 1) -> None:
    """Raises ``ConfigError`` if inputs are not images, or smaller than ``least`` pixels in height or width."""
    name = type(network).__name__
    if len(input_shape) != 3:
        raise ConfigError(f"supernet.input_shape: {list(input_shape)} must be channels, height, width for {name}")
    if min(input_shape[1:]) < least:
        raise ConfigError(
            f"supernet.input_shape: {input_shape[1]}x{input_shape[2]} pixels are too few for {name}, which "
            f"needs {least}x{least} or more"
        )


def check_tokens(network: object, input_shape: Sequence[int]) -> None:
    """Raises ``ConfigError`` if inputs are not sequences of tokens."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"supernet.input_shape: {list(input_shape)} must be one number of tokens for {type(network).__name__}; "
            f"choose a source of sequences of tokens"
        )


def check_as_many(**settings: Sequence[int]) -> None:
    """Raises ``ConfigError`` if two settings of a family are not as many numbers."""
    (first, many), (name, numbers) = settings.items()
    if len(numbers) != len(many):
        raise ConfigError(f"supernet.family.{name}: {list(numbers)} must be as many numbers as {first}, {list(many)}")
