"""Families of networks with one structure and any number of units per group, to be cut, pruned or grown."""

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

#: Each dimension of a tensor: the group of its units and the adjacent entries per unit; ``(None, 1)`` without a group.
Axes = tuple[tuple[str | None, int], ...]
#: The number of units of each group.
Sizes = Mapping[str, int]
ROUNDING = 1e-9  # 0.1 * 30 is slightly above 3, but means three units


class NetworkFamily(ABC):
    """Networks of one structure, with any number of units per group.

    Units that are cut or grow together form a group: the output channels of a convolution and the input channels of the
    next, the outputs of all blocks that are summed, the heads of a layer. :func:`find_axes` finds their tensors.
    """

    #: Normalisation layer of the networks, if any.
    norm: Norm | None = None
    #: Type of the inputs: float32, or int64 for tokens.
    input_dtype = torch.float32

    @property
    def multiple(self) -> int:
        """The divisor of every group's number of units: a group norm's group size, otherwise 1."""
        return 1 if self.norm is None else self.norm.multiple

    @abstractmethod
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """Returns each group's full number of units; raises ``ConfigError`` for inputs of an unsuitable shape."""

    @abstractmethod
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        """Builds a network; its modules and tensors have the same names for all sizes.

        Args:
            sizes: Units per group.
            input_shape: Shape of one example.
            num_classes: Width of the output, which is never cut.
            scale: Divisor of the scalers in training; 1 has no effect, and networks without scalers ignore it.
        """


@dataclass(frozen=True)
class UngroupedFamily(NetworkFamily):
    """A family with dense, newly drawn convolutions instead of grouped ones (FedTrans, App. A.1).

    Args:
        family: The networks with grouped convolutions.

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


def multiply_units(units: Sizes, ratio: float, multiple: int = 1) -> dict[str, int]:
    """Multiplies every group's units by a ratio, above 0 and up to 1, and rounds up to a multiple."""
    return {
        group: min(full, multiple * max(1, ceil(ratio * full / multiple - ROUNDING))) for group, full in units.items()
    }


def round_to_multiple(value: float, divisor: int) -> int:
    """Returns the multiple of ``divisor`` nearest to ``value``, at least ``divisor`` and 90 % of ``value``."""
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


def find_axes(build: Callable[[Sizes], nn.Module], units: Sizes, multiple: int, name: str) -> dict[str, Axes]:
    """Returns the axes of every tensor by name, from networks in which one group at a time is larger."""
    shapes = shapes_of(on_meta(build, units))
    axes: dict[str, list[tuple[str | None, int]]] = {
        tensor: [(None, 1)] * len(shape) for tensor, shape in shapes.items()
    }
    for group, full in units.items():
        larger_shapes = shapes_of(on_meta(build, {**units, group: full + multiple}))
        for tensor, shape in shapes.items():
            for dimension, (size, larger) in enumerate(zip(shape, larger_shapes[tensor], strict=True)):
                if larger == size:
                    continue
                previous, repeat = axes[tensor][dimension][0], (larger - size) // multiple
                if previous is not None or size != full * repeat:
                    raise ConfigError(
                        f"supernet.family: dimension {dimension} of {tensor} in {name} has {size} entries and grows "
                        f"with {group} by {larger - size}{f' and with {previous}' if previous else ''}; a dimension "
                        f"must belong to one group as a whole"
                    )
                axes[tensor][dimension] = (group, repeat)
    return {tensor: tuple(dimensions) for tensor, dimensions in axes.items()}


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Returns all parameters and buffers by name, parameters first."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors by name, parameters first."""
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(network).items()}


def entries_of(units: Tensor, repeat: int) -> Tensor:
    """Returns the indices, ``[units * repeat]``, of units with ``repeat`` adjacent entries each."""
    return (units[:, None] * repeat + torch.arange(repeat, device=units.device)).flatten()


def check_image(network: object, input_shape: Sequence[int], min_side: int = 1) -> None:
    """Raises ``ConfigError`` if inputs are not images of at least ``min_side`` pixels in height and width."""
    name = type(network).__name__
    if len(input_shape) != 3:
        raise ConfigError(f"supernet.input_shape: {list(input_shape)} must be channels, height, width for {name}")
    _, height, width = input_shape
    if min(height, width) < min_side:
        raise ConfigError(f"supernet.input_shape: {height}x{width} is too small for {name}; use at least {min_side}")


def check_tokens(network: object, input_shape: Sequence[int]) -> None:
    """Raises ``ConfigError`` if inputs are not sequences of tokens."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"supernet.input_shape: {list(input_shape)} must be one number of tokens for {type(network).__name__}; "
            f"choose a source of token sequences"
        )


def check_equal_lengths(**settings: Sequence[int]) -> None:
    """Raises ``ConfigError`` if two settings of a family differ in length."""
    (first_name, expected), (name, numbers) = settings.items()
    if len(numbers) != len(expected):
        raise ConfigError(f"supernet.family.{name}: {list(numbers)} must be as long as {first_name}, {list(expected)}")
