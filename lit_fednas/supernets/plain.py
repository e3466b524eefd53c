"""Ordinary networks as supernets of one architecture: for federated averaging and for comparisons.

* :class:`PlainNetwork`: any network.
* :class:`SmallCNN`: the convolutional network of Reddi et al. (2021, "Adaptive Federated Optimization",
  App. A.2) for EMNIST, which many federated benchmarks share. With 1x28x28 inputs and 62 classes it has their
  1,206,590 parameters.
* :class:`ResNet18`: the ResNet-18 of He et al. (2016) with the stem that is usual for 32x32 images, a 3x3
  convolution of stride 1 without pooling, and with group norm in place of batch norm by default, as federated
  work has it since Hsieh et al. (2020).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.base import NestedSupernet, he_normal
from lit_fednas.supernets.elastic_resnet import ResidualBlock
from lit_fednas.supernets.norms import GroupNorm, Norm
from lit_fednas.supernets.space import Ladder

_NORM = GroupNorm()
_STAGES = 4
_BLOCKS = 2


class PlainNetwork(NestedSupernet):
    """An ordinary network as a supernet of one architecture, ``whole``.

    So federated averaging and independent training of a network are special cases.

    Args:
        network: The network.
        input_shape: Shape of one example.
        num_classes: Width of its output.

    Example:
        >>> net = PlainNetwork(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2), 2)
        >>> net(torch.zeros(3, 1, 2, 2)).shape, net.space.largest
        (torch.Size([3, 2]), 'whole')
    """

    def __init__(self, network: nn.Module, input_shape: Iterable[int], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.network = network
        self.space = Ladder(["whole"])

    @override
    def build(self, arch: Any) -> nn.Module:
        return _structure_of(self.network)


class SmallCNN(PlainNetwork):
    """Two 3x3 convolutions without padding, pooling, two linear layers, with dropout.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Classes.

    Raises:
        ConfigError: The images are smaller than 6x6.

    Example:
        >>> net = SmallCNN()
        >>> sum(parameter.numel() for parameter in net.parameters())
        1626442
    """

    def __init__(self, input_shape: Iterable[int] = (3, 32, 32), num_classes: int = 10) -> None:
        channels, height, width = input_shape
        pooled = (height - 4) // 2 * ((width - 4) // 2)
        if min(height, width) < 6:
            raise ConfigError(
                f"supernet.input_shape: {height}x{width} pixels leave nothing after two convolutions and "
                f"pooling; give 6x6 or more"
            )
        network = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * pooled, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, num_classes),
        )
        super().__init__(network, (channels, height, width), num_classes)


@checked("supernet")
class ResNet18(PlainNetwork):
    """Four stages of two residual blocks for small images.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Classes.
        norm: Normalisation layer.
        width: Channels of the stem and the first stage; every later stage has twice as many.

    Raises:
        ConfigError: The width is not positive, or the norm does not allow it.

    Example:
        >>> net = ResNet18(width=8)
        >>> net.network.classifier.in_features
        64
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        norm: Norm = _NORM,
        width: PositiveInt = 64,
    ) -> None:
        shape = tuple(input_shape)
        network = nn.Sequential()
        network.add_module("stem", nn.Conv2d(shape[0], width, 3, padding=1, bias=False))
        network.add_module("norm", norm(width))
        network.add_module("relu", nn.ReLU(inplace=True))
        network.add_module("stages", nn.Sequential(*(_stage(stage, width, norm) for stage in range(_STAGES))))
        network.add_module("pool", nn.AdaptiveAvgPool2d(1))
        network.add_module("flatten", nn.Flatten())
        network.add_module("classifier", nn.Linear(width << (_STAGES - 1), num_classes))
        he_normal(network)
        super().__init__(network, shape, num_classes)


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions of equal width; the shortcut is a 1x1 convolution where shapes change."""

    def __init__(self, width: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__(width, out, out, stride, norm)
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride=stride, bias=False), norm(out))


def _stage(stage: int, first_width: int, norm: Norm) -> nn.Sequential:
    """The blocks of a stage; all stages but the first begin with a stride of two."""
    out = first_width << stage
    before, stride = (out // 2, 2) if stage else (out, 1)
    blocks = [BasicBlock(before, out, stride, norm)]
    blocks += [BasicBlock(out, out, 1, norm) for _ in range(_BLOCKS - 1)]
    return nn.Sequential(*blocks)


def _structure_of(network: nn.Module) -> nn.Module:
    """Copies a module's structure to the meta device, without copying its weights."""
    memo: dict[int, Any] = {}
    for tensor in network.parameters():
        memo[id(tensor)] = nn.Parameter(torch.empty_like(tensor, device="meta"), tensor.requires_grad)
    for buffer in network.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(network, memo)
