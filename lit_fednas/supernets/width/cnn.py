"""Plain convolutional networks that are cut in width: HeteroFL's, FedNAS' and the small one of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_filled, check_image
from lit_fednas.supernets.layers import Scaler, conv_layer, convolution, pooled_classifier, sequential
from lit_fednas.supernets.norms import BatchNorm, Norm


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedCNN(NetworkFamily):
    """HeteroFL's convolutional network (Diao et al., 2021).

    Each layer is a 3x3 convolution, scaler, norm, ReLU and max pooling of 2x2, the last without pooling. Global
    average pooling and a linear classifier follow. Groups of units: ``layer0``, ``layer1``, ...

    Args:
        hidden: Channels of the layers.
        norm: Normalisation layer, ``None`` for none. The default is HeteroFL's static batch norm: batch statistics
            that are not shared. Its authors gather them after training for evaluation, as
            ``evaluation.recalibrate_batches`` does.

    Raises:
        ConfigError: No layer is given, or a number of channels is not positive.

    Example:
        >>> SlicedCNN((8, 16)).units((3, 8, 8))
        {'layer0': 8, 'layer1': 16}
    """

    hidden: Sequence[PositiveInt] = (64, 128, 256, 512)
    norm: Norm | None = BatchNorm(running_statistics=False)

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape, 2 ** (len(self.hidden) - 1))
        return {f"layer{number}": channels for number, channels in enumerate(self.hidden)}

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        layers: dict[str, nn.Module] = {}
        channels, last = input_shape[0], len(self.hidden) - 1
        for number in range(len(self.hidden)):
            name = f"layer{number}"
            conv = convolution(channels, sizes[name], bias=True)
            layers[name] = conv_layer(conv, self.norm, scale=scale, pool=2 if number < last else 0)
            channels = sizes[name]
        return sequential(**layers, **pooled_classifier(channels, num_classes))


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedSmallCNN(NetworkFamily):
    """The small network of Reddi et al. (2021, App. A.2), see ``SmallCNN``.

    Two 3x3 convolutions without padding, pooling, dropout, a hidden linear layer, dropout, a classifier; a scaler
    follows every layer that is cut. Groups of units: ``conv1``, ``conv2``, ``hidden``.

    Args:
        channels: Output channels of the two convolutions.
        hidden: Units of the hidden linear layer.

    Raises:
        ConfigError: One of the numbers is not positive, or there are not two convolutions.

    Example:
        >>> SlicedSmallCNN().units((1, 28, 28))
        {'conv1': 32, 'conv2': 64, 'hidden': 128}
    """

    channels: tuple[PositiveInt, PositiveInt] = (32, 64)
    hidden: PositiveInt = 128

    def __post_init__(self) -> None:
        if len(self.channels) != 2:
            raise ConfigError(f"supernet.family.channels: {self.channels} must be two numbers")

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape, 6)
        return {"conv1": self.channels[0], "conv2": self.channels[1], "hidden": self.hidden}

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        """Builds the network; one channel of the second convolution is many inputs of the linear layer."""
        channels, height, width = input_shape
        pooled = (height - 4) // 2 * ((width - 4) // 2)
        first, second, hidden = sizes["conv1"], sizes["conv2"], sizes["hidden"]

        def scaled(layer: nn.Module) -> nn.Sequential:
            return nn.Sequential(layer, Scaler(scale), nn.ReLU())

        return sequential(
            conv1=scaled(nn.Conv2d(channels, first, 3)),
            conv2=scaled(nn.Conv2d(first, second, 3)),
            pool=nn.Sequential(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            hidden=scaled(nn.Linear(second * pooled, hidden)),
            dropout=nn.Dropout(0.5),
            classifier=nn.Linear(hidden, num_classes),
        )


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedConvNet(NetworkFamily):
    """FedNAS' ConvNet (Xu et al., section 5.1 and Table 2): "sequential CONV, Pooling, and final FC layers".

    Each layer is a 3x3 convolution, scaler, norm, ReLU, and after some max pooling of 2x2. A fully connected layer
    with a scaler and ReLU may follow, and a linear classifier. The first of these gets all pixels of the last
    convolution, so one channel there is many of its inputs. Convolutions have a bias only without a norm. Groups of
    units: ``conv1``, ``conv2``, ..., and ``linear``.

    The paper's "6 CONV, 1 FC" make K = 7 candidates (section 4.1), and so do the uplinks of its Table 3: with 10
    rounds, the winner's 10 of all K * 10 uploads are left if the others leave at once, 19.7 of 138.0 MB = 1/7; 1.5/7
    and 1.25/7 if a third or half leave per round. A classifier's outputs are the classes, of which none can leave, so
    the one that can be pruned is most plausibly another: set ``linear`` for it.

    The paper gives no sizes. The default has 0.35 million parameters for 128x128 pixels and eight classes: the
    uplink costs of its Table 3 are about a megabyte per upload, on the average of a sequence that goes down to
    half of the MACs. With its pooling, 128x128 pixels end as 8x8, 32x32 as 2x2, and 16x16 as one.

    Args:
        hidden: Channels of the convolutions.
        pools: The convolutions, counted from 1, that pooling follows.
        linear: Units of the fully connected layer before the classifier; ``None`` for no such layer.
        norm: Normalisation layer. The default is none: AlexNet has no batch norm, and most of the paper's clients
            would compute its statistics of a dozen images. Without a norm the convolutions start as in He et al.
            (2015), because with PyTorch's own initial weights signals vanish after six of them.

    Raises:
        ConfigError: A number is not positive, or pooling is to follow an unknown convolution, or one twice.

    Example:
        >>> SlicedConvNet(hidden=(8, 16), pools=(1, 2), linear=20).units((3, 16, 16))
        {'conv1': 8, 'conv2': 16, 'linear': 20}
    """

    hidden: Sequence[PositiveInt] = (32, 32, 64, 64, 128, 128)
    pools: Sequence[int] = (1, 2, 4, 6)
    norm: Norm | None = None
    linear: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden)
        if len(set(self.pools)) < len(self.pools) or not set(self.pools) <= set(range(1, len(self.hidden) + 1)):
            raise ConfigError(
                f"supernet.family.pools: {list(self.pools)} must be different numbers from 1 to "
                f"{len(self.hidden)}, the convolutions that hidden gives"
            )
        if (self.linear or 0) % self.multiple:
            raise ConfigError(
                f"supernet.family.linear: {self.linear} is no multiple of norm.group_size, {self.multiple}, by which "
                f"all layers lose units; give a multiple"
            )

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape, 2 ** len(self.pools))
        convolutions = {f"conv{number}": channels for number, channels in enumerate(self.hidden, start=1)}
        return convolutions if self.linear is None else {**convolutions, "linear": self.linear}

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        channels, height, width = input_shape
        layers: dict[str, nn.Module] = {}
        for number in range(1, len(self.hidden) + 1):
            name = f"conv{number}"
            conv = convolution(channels, sizes[name], bias=self.norm is None)
            if self.norm is None:
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers[name] = conv_layer(conv, self.norm, scale=scale, pool=2 if number in self.pools else 0)
            channels = sizes[name]
        inputs = channels * (height >> len(self.pools)) * (width >> len(self.pools))
        layers["flatten"] = nn.Flatten()
        if self.linear is not None:
            linear = nn.Linear(inputs, sizes["linear"])
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            layers["linear"] = sequential(linear=linear, scaler=Scaler(scale), activation=nn.ReLU(inplace=True))
            inputs = sizes["linear"]
        return sequential(**layers, classifier=nn.Linear(inputs, num_classes))
