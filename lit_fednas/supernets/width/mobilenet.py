"""MobileNet v1, cut in width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, check_image, check_positive, norm_layer, norm_multiple
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.scaler import Scaler

_NORM = BatchNorm()
_CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


@dataclass(frozen=True)
class SlicedMobileNet(NetworkFamily):
    """MobileNet v1 (Howard et al., 2017, Table 1), the larger network of FedNAS (Xu et al., section 5.1).

    A full 3x3 convolution, norm and ReLU; then blocks of a 3x3 depthwise convolution, norm, ReLU, a 1x1 pointwise
    convolution, norm and ReLU; global average pooling and a linear classifier. Convolutions have a bias only where
    there is no norm. A scaler stands behind the full convolution and the pointwise ones: a depthwise one adds up
    as many terms at every width.

    Groups of units: ``conv0``, the channels of the full convolution, and ``conv1``, ``conv2``, ..., those that the
    pointwise convolutions put out. The depthwise convolution of the next block has the same channels and follows.
    So with the default's 13 blocks there are 14 groups that can lose filters, as many as FedNAS' K = 14. Its
    Table 2 counts "13 CONV, 1 FC" instead: most plausibly the blocks and the classifier, without the full
    convolution. But a classifier's outputs are the classes, of which none can leave, and its inputs leave with
    ``conv13``.

    Args:
        width: What all channels are multiplied by (the authors' width multiplier), rounded to multiples of a group
            norm's group size, and never to nothing.
        channels: Of the full convolution, then what each block puts out.
        strides: Of the full convolution, then of each block's depthwise one. The default is for 224x224 images.
            It reads the second of Table 1's last two strides of two as one, for the sizes in the table do not
            change there. For 32x32 images use ``[1, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``, and for 16x16
            ``[1, 1, 1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``; both end in 2x2 pixels.
        norm: Normalisation layer, ``None`` for none. The default is the authors' batch norm.

    Raises:
        ConfigError: A number is not positive, or there are not as many strides as channels.

    Example:
        >>> SlicedMobileNet(0.5, channels=(32, 64, 128), strides=(1, 1, 2)).units((3, 32, 32))
        {'conv0': 16, 'conv1': 32, 'conv2': 64}
    """

    width: float = 1.0
    channels: Sequence[int] = _CHANNELS
    strides: Sequence[int] = _STRIDES
    norm: Norm | None = _NORM

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels, strides=self.strides)
        if not self.width > 0:
            raise ConfigError(f"supernet.family.width: {self.width} must be above 0")
        if len(self.strides) != len(self.channels):
            raise ConfigError(
                f"supernet.family.strides: {list(self.strides)} must be as many numbers as channels, "
                f"{list(self.channels)}"
            )

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The channels of the full convolution, and those that each block puts out."""
        check_image(self, input_shape)
        return {f"conv{place}": self._scaled(channels) for place, channels in enumerate(self.channels)}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds convolution, blocks and classifier."""
        channels = [sizes[f"conv{place}"] for place in range(len(self.channels))]
        network = nn.Sequential()
        network.add_module("conv0", self._first(input_shape[0], channels[0], scale))
        for place, (before, out) in enumerate(pairwise(channels), start=1):
            network.add_module(f"conv{place}", self._block(before, out, self.strides[place], scale))
        network.add_module("pool", nn.AdaptiveAvgPool2d(1))
        network.add_module("flatten", nn.Flatten())
        network.add_module("classifier", nn.Linear(channels[-1], num_classes))
        return network

    def _first(self, channels: int, out: int, scale: float) -> nn.Sequential:
        """The full convolution."""
        layer = nn.Sequential()
        bias = self.norm is None
        layer.add_module("conv", nn.Conv2d(channels, out, 3, stride=self.strides[0], padding=1, bias=bias))
        layer.add_module("scaler", Scaler(scale))
        layer.add_module("norm", norm_layer(self.norm, out))
        layer.add_module("relu", nn.ReLU(inplace=True))
        return layer

    def _block(self, channels: int, out: int, stride: int, scale: float) -> nn.Sequential:
        """A convolution per channel, and one across them."""
        block = nn.Sequential()
        bias = self.norm is None
        depthwise = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=bias)
        block.add_module("depthwise", depthwise)
        block.add_module("depthwise_norm", norm_layer(self.norm, channels))
        block.add_module("depthwise_relu", nn.ReLU(inplace=True))
        block.add_module("pointwise", nn.Conv2d(channels, out, 1, bias=bias))
        block.add_module("scaler", Scaler(scale))
        block.add_module("norm", norm_layer(self.norm, out))
        block.add_module("relu", nn.ReLU(inplace=True))
        return block

    def _scaled(self, channels: int) -> int:
        multiple = self.multiple
        return multiple * max(1, round(self.width * channels / multiple))
