"""Ordinary networks as supernets of one architecture, for federated averaging and for comparisons."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.costs.counting import meta_copy, on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, PositiveShare, checked
from lit_fednas.supernets.base import NestedSupernet, he_normal
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_image, multiply_units
from lit_fednas.supernets.layers import (
    GroupNorm,
    Norm,
    basic_block,
    conv_layer,
    convolution,
    pooled_classifier,
    sequential,
)
from lit_fednas.supernets.space import Ladder

_STAGES = 4
_BLOCKS = 2
_LEAST_PIXELS = 6  # two convolutions and a pooling leave one pixel


class PlainNetwork(NestedSupernet):
    """An ordinary network as a supernet of one architecture, ``whole``.

    Args:
        network: The network.
        input_shape: Shape of one example.
        num_classes: Width of the network's output.
        input_dtype: Type of the network's inputs.

    Example:
        >>> net = PlainNetwork(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2), 2)
        >>> net(torch.zeros(3, 1, 2, 2)).shape, net.space.largest
        (torch.Size([3, 2]), 'whole')
    """

    def __init__(
        self,
        network: nn.Module,
        input_shape: Iterable[int],
        num_classes: int,
        input_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.input_dtype = input_dtype
        self.network = network
        self.space = Ladder(["whole"])

    @override
    def build(self, arch: Any) -> nn.Module:
        return meta_copy(self.network)


@checked("supernet")
class FamilyNetwork(PlainNetwork):
    """A network of a family with fresh weights, such as a grown model or one that a width multiplier has cut.

    Args:
        input_shape: Shape of one example.
        num_classes: Number of classes.
        family: The family of networks.
        macs: Largest share of the whole network's multiply-accumulates. All layers' units are multiplied by the
            largest ratio that meets it (the width multiplier of Howard et al., 2017).
    """

    def __init__(
        self, input_shape: Iterable[int], num_classes: int, family: NetworkFamily, macs: PositiveShare = 1.0
    ) -> None:
        shape = tuple(input_shape)
        sizes = _sizes_within(family, shape, num_classes, macs) if macs < 1 else family.units(shape)
        super().__init__(family.build(sizes, shape, num_classes), shape, num_classes, family.input_dtype)


def _sizes_within(family: NetworkFamily, shape: tuple[int, ...], num_classes: int, share: float) -> Sizes:
    """Returns the units of the widest network within a share of the whole network's multiply-accumulates."""
    units, multiple = family.units(shape), family.multiple

    def count(sizes: Sizes) -> int:
        return count_macs(on_meta(family.build, sizes, shape, num_classes), shape, family.input_dtype)

    whole_macs = count(units)
    ratios = sorted({step * multiple / full for full in units.values() for step in range(1, full // multiple + 1)})
    within = bisect_right(ratios, share * whole_macs, key=lambda ratio: count(multiply_units(units, ratio, multiple)))
    if not within:
        smallest = count(multiply_units(units, ratios[0], multiple)) / whole_macs
        raise ConfigError(f"supernet.macs: {share} is below the smallest network's share, {smallest:.3g}; raise it")
    return multiply_units(units, ratios[within - 1], multiple)


class SmallCNN(PlainNetwork):
    """Two 3x3 convolutions without padding, pooling and two linear layers, with dropout.

    The network of Reddi et al. (2021, "Adaptive Federated Optimization", App. A.2) for EMNIST, with their 1,206,590
    parameters for 1x28x28 inputs and 62 classes.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Number of classes.

    Example:
        >>> SmallCNN((1, 28, 28), 62).cost("whole").parameters
        1206590
    """

    def __init__(self, input_shape: Iterable[int] = (3, 32, 32), num_classes: int = 10) -> None:
        shape = tuple(input_shape)
        check_image(self, shape, _LEAST_PIXELS)
        channels, height, width = shape
        pooled = (height - 4) // 2 * ((width - 4) // 2)
        network = sequential(
            conv1=nn.Sequential(nn.Conv2d(channels, 32, 3), nn.ReLU()),
            conv2=nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU()),
            pool=nn.Sequential(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            hidden=nn.Sequential(nn.Linear(64 * pooled, 128), nn.ReLU()),
            dropout=nn.Dropout(0.5),
            classifier=nn.Linear(128, num_classes),
        )
        super().__init__(network, shape, num_classes)


@checked("supernet")
class ResNet18(PlainNetwork):
    """The ResNet-18 of He et al. (2016) for small images: four stages of two residual blocks.

    The stem is a 3x3 convolution of stride 1 without pooling, and the default norm is group norm (Hsieh et al., 2020).

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Number of classes.
        norm: Normalisation layer.
        width: Channels of the stem and the first stage; every later stage has twice as many.
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        norm: Norm = GroupNorm(),
        width: PositiveInt = 64,
    ) -> None:
        shape = tuple(input_shape)
        layers: dict[str, nn.Module] = {"stem": conv_layer(convolution(shape[0], width), norm)}
        channels = width
        for stage in range(_STAGES):
            for block in range(_BLOCKS):
                out, stride, shortcut = width << stage, 1, None
                if stage and not block:
                    stride, shortcut = 2, nn.Sequential(convolution(channels, out, 1, stride=2), norm(out))
                name = f"stage{stage}_block{block}"
                layers[name] = basic_block(channels, out, out, stride, norm, shortcut)
                channels = out
        network = sequential(**layers, **pooled_classifier(channels, num_classes))
        he_normal(network)
        super().__init__(network, shape, num_classes)
