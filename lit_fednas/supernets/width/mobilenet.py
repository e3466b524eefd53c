"""MobileNet v1, cut in width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from typing_extensions import override

from lit_fednas.ranges import PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_filled, check_image
from lit_fednas.supernets.layers import conv_layer, convolution, pooled_classifier, sequential
from lit_fednas.supernets.norms import BatchNorm, Norm

_CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedMobileNet(NetworkFamily):
    """MobileNet v1 (Howard et al., 2017, Table 1), the larger network of FedNAS (Xu et al., section 5.1).

    A full 3x3 convolution, norm and ReLU; then blocks of a 3x3 depthwise convolution, norm, ReLU, a 1x1 pointwise
    convolution, norm and ReLU; global average pooling and a linear classifier. Convolutions have a bias only
    without a norm. A scaler follows the full convolution and the pointwise ones: a depthwise one adds up as many
    terms at every width. (Weights of torchvision's MobileNets do not fit: v2 and v3 have inverted residuals.)

    Groups of units: ``conv0``, the channels of the full convolution, and ``conv1``, ``conv2``, ..., the outputs of
    the pointwise convolutions, with the next block's depthwise convolution. So with the default's 13 blocks there
    are 14 groups that can lose filters, as many as FedNAS' K = 14. Its Table 2 counts "13 CONV, 1 FC" instead:
    most plausibly the blocks and the classifier, without the full convolution. But a classifier's outputs are the
    classes, of which none can leave, and its inputs leave with ``conv13``.

    Args:
        width: By how much all channels are multiplied (the authors' width multiplier), rounded to multiples of a
            group norm's group size, at least one multiple.
        channels: Outputs of the full convolution, then of each block.
        strides: Of the full convolution, then of each block's depthwise one. The default is for 224x224 images,
            with the second of Table 1's last two strides of two as one, for the sizes in the table do not change
            there. For 32x32 images use ``[1, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``, and for 16x16
            ``[1, 1, 1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``; both end in 2x2 pixels.
        norm: Normalisation layer, ``None`` for none. The default is the authors' batch norm.

    Raises:
        ConfigError: A number is not positive, or there are not as many strides as channels.

    Example:
        >>> SlicedMobileNet(0.5, channels=(32, 64, 128), strides=(1, 1, 2)).units((3, 32, 32))
        {'conv0': 16, 'conv1': 32, 'conv2': 64}
    """

    width: PositiveFloat = 1.0
    channels: Sequence[PositiveInt] = _CHANNELS
    strides: Sequence[PositiveInt] = _STRIDES
    norm: Norm | None = BatchNorm()

    def __post_init__(self) -> None:
        check_filled(channels=self.channels, strides=self.strides)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape)
        widened = [max(1, round(self.width * channels / self.multiple)) for channels in self.channels]
        return {f"conv{number}": self.multiple * blocks for number, blocks in enumerate(widened)}

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        channels = [sizes[f"conv{number}"] for number in range(len(self.channels))]
        bias = self.norm is None
        conv = convolution(input_shape[0], channels[0], stride=self.strides[0], bias=bias)
        layers = {"conv0": conv_layer(conv, self.norm, scale=scale)}
        for number, (inputs, outputs) in enumerate(pairwise(channels), start=1):
            depthwise = convolution(inputs, inputs, stride=self.strides[number], groups=inputs, bias=bias)
            pointwise = convolution(inputs, outputs, 1, bias=bias)
            layers[f"conv{number}"] = sequential(
                depthwise=conv_layer(depthwise, self.norm), pointwise=conv_layer(pointwise, self.norm, scale=scale)
            )
        return sequential(**layers, **pooled_classifier(channels[-1], num_classes))
