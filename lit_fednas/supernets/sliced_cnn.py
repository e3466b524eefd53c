"""Convolutional networks that are cut in width: HeteroFL's, and the small one of federated benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.scaler import Scaler
from lit_fednas.supernets.width_families import WidthFamily, check_image, check_positive, norm_layer, norm_multiple

_STATIC = BatchNorm(running_statistics=False)


@dataclass(frozen=True)
class SlicedCNN(WidthFamily):
    """HeteroFL's convolutional network (Diao et al., 2021).

    Each layer is a 3x3 convolution, scaler, norm, ReLU and max pooling of 2x2, the last without pooling. Global
    average pooling and a linear classifier follow. Groups of units: ``layer0``, ``layer1``, ...

    Args:
        hidden: Channels of the layers.
        norm: Normalisation layer, ``None`` for none. The default is HeteroFL's static batch norm: statistics are
            of the batch, and are not shared. Its authors gather them after training for evaluation, which
            ``evaluation.recalibrate_batches`` does; else evaluation uses its own batches' too.

    Raises:
        ConfigError: A number of channels is not positive.

    Example:
        >>> SlicedCNN((8, 16)).units((3, 8, 8))
        {'layer0': 8, 'layer1': 16}
    """

    hidden: Sequence[int] = (64, 128, 256, 512)
    norm: Norm | None = _STATIC

    def __post_init__(self) -> None:
        check_positive(self, hidden=self.hidden)

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The output channels of each layer."""
        check_image(self, input_shape, 2 ** (len(self.hidden) - 1))
        return {f"layer{place}": channels for place, channels in enumerate(self.hidden)}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds the layers and the classifier."""
        network = nn.Sequential()
        channels, last = input_shape[0], len(self.hidden) - 1
        for place in range(len(self.hidden)):
            out = sizes[f"layer{place}"]
            layer = nn.Sequential()
            layer.add_module("conv", nn.Conv2d(channels, out, 3, padding=1))
            layer.add_module("scaler", Scaler(scale))
            layer.add_module("norm", norm_layer(self.norm, out))
            layer.add_module("relu", nn.ReLU(inplace=True))
            if place < last:
                layer.add_module("pool", nn.MaxPool2d(2))
            network.add_module(f"layer{place}", layer)
            channels = out
        network.add_module("pool", nn.AdaptiveAvgPool2d(1))
        network.add_module("flatten", nn.Flatten())
        network.add_module("classifier", nn.Linear(channels, num_classes))
        return network


@dataclass(frozen=True)
class SlicedSmallCNN(WidthFamily):
    """The small network of Reddi et al. (2021, App. A.2), as ``SmallCNN`` has it, cut in width.

    Two 3x3 convolutions without padding, pooling, dropout, a hidden linear layer, dropout, a classifier; a scaler
    stands behind every layer that is cut. Groups of units: ``conv1``, ``conv2``, ``hidden``.

    Args:
        channels: Output channels of the two convolutions.
        hidden: Units of the hidden linear layer.

    Raises:
        ConfigError: One of the numbers is not positive, or there are not two convolutions.

    Example:
        >>> SlicedSmallCNN().units((1, 28, 28))
        {'conv1': 32, 'conv2': 64, 'hidden': 128}
    """

    channels: tuple[int, int] = (32, 64)
    hidden: int = 128

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels, hidden=self.hidden)
        if len(self.channels) != 2:
            raise ConfigError(f"supernet.family.channels: {self.channels} must be two numbers")

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """Channels and hidden units."""
        check_image(self, input_shape, 6)
        return {"conv1": self.channels[0], "conv2": self.channels[1], "hidden": self.hidden}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds the network; one channel of the second convolution is many inputs of the linear layer."""
        channels, height, width = input_shape
        pooled = (height - 4) // 2 * ((width - 4) // 2)
        first, second, hidden = sizes["conv1"], sizes["conv2"], sizes["hidden"]
        network = nn.Sequential()
        network.add_module("conv1", _cut(nn.Conv2d(channels, first, 3), scale))
        network.add_module("conv2", _cut(nn.Conv2d(first, second, 3), scale))
        network.add_module("pool", nn.Sequential(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()))
        network.add_module("hidden", _cut(nn.Linear(second * pooled, hidden), scale))
        network.add_module("dropout", nn.Dropout(0.5))
        network.add_module("classifier", nn.Linear(hidden, num_classes))
        return network


def _cut(layer: nn.Module, scale: float) -> nn.Sequential:
    """A layer with its scaler and activation."""
    return nn.Sequential(layer, Scaler(scale), nn.ReLU())
