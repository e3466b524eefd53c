"""Plain convolutional networks that are cut in width: HeteroFL's, FedNAS' and the small one of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, check_image, check_positive, norm_layer, norm_multiple
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.scaler import Scaler

_STATIC = BatchNorm(running_statistics=False)


@dataclass(frozen=True)
class SlicedCNN(NetworkFamily):
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
class SlicedSmallCNN(NetworkFamily):
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


@dataclass(frozen=True)
class SlicedConvNet(NetworkFamily):
    """FedNAS' ConvNet (Xu et al., section 5.1 and Table 2): six convolutions, pooling, one linear classifier.

    Each layer is a 3x3 convolution, scaler, norm, ReLU, and max pooling of 2x2 where ``pools`` says so. The
    classifier sees all pixels of the last layer, so one channel there is many of its inputs. Convolutions have a
    bias only where there is no norm. Groups of units: ``conv1``, ``conv2``, ... The paper's "6 CONV, 1 FC" counts
    the classifier as well, but its outputs are the classes, of which none can leave.

    The paper gives no sizes. The default has 0.35 million parameters for 128x128 pixels and eight classes: the
    uplink costs of its Table 3 are about a megabyte per upload, on the average of a sequence that goes down to
    half of the MACs. With its pooling, 128x128 pixels end as 8x8, 32x32 as 2x2, and 16x16 as one.

    Args:
        hidden: Channels of the convolutions.
        pools: The convolutions, counted from 1, that pooling follows.
        norm: Normalisation layer. The default is none, for AlexNet has no batch norm, and most of the paper's
            clients would take its statistics of a dozen images. Without one the convolutions start as He et al.
            (2015) draw them, for with PyTorch's own draws six of them make signals vanish.

    Raises:
        ConfigError: A number is not positive, or pooling is to follow a convolution that is not there, or twice.

    Example:
        >>> SlicedConvNet(hidden=(8, 16), pools=(1, 2)).units((3, 16, 16))
        {'conv1': 8, 'conv2': 16}
    """

    hidden: Sequence[int] = (32, 32, 64, 64, 128, 128)
    pools: Sequence[int] = (1, 2, 4, 6)
    norm: Norm | None = None

    def __post_init__(self) -> None:
        check_positive(self, hidden=self.hidden)
        if len(set(self.pools)) < len(self.pools) or not set(self.pools) <= set(range(1, len(self.hidden) + 1)):
            raise ConfigError(
                f"supernet.family.pools: {list(self.pools)} must be different numbers from 1 to "
                f"{len(self.hidden)}, the convolutions that hidden gives"
            )

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The output channels of each convolution."""
        check_image(self, input_shape, 2 ** len(self.pools))
        return {f"conv{place}": channels for place, channels in enumerate(self.hidden, start=1)}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds the layers and the classifier; one channel of the last convolution is many inputs of it."""
        channels, height, width = input_shape
        network = nn.Sequential()
        for place in range(1, len(self.hidden) + 1):
            out = sizes[f"conv{place}"]
            layer = nn.Sequential()
            layer.add_module("conv", self._convolution(channels, out))
            layer.add_module("scaler", Scaler(scale))
            layer.add_module("norm", norm_layer(self.norm, out))
            layer.add_module("relu", nn.ReLU(inplace=True))
            if place in self.pools:
                layer.add_module("pool", nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            network.add_module(f"conv{place}", layer)
            channels = out
        network.add_module("flatten", nn.Flatten())
        network.add_module("classifier", nn.Linear(channels * height * width, num_classes))
        return network

    def _convolution(self, channels: int, out: int) -> nn.Conv2d:
        """A convolution that keeps the size of what goes through it, where no norm does so."""
        made = nn.Conv2d(channels, out, 3, padding=1, bias=self.norm is None)
        if self.norm is None:
            nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
        return made
