"""Convolutional networks that are cut in width."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, PositiveInt, PositiveInts, checked
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_equal_lengths, check_image
from lit_fednas.supernets.layers import (
    BatchNorm,
    Norm,
    Scaler,
    conv_layer,
    convolution,
    norm_layer,
    pooled_classifier,
    preactivated_block,
    sequential,
)


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedCNN(NetworkFamily):
    """HeteroFL's convolutional network (Diao et al., 2021).

    A layer is a 3x3 convolution, scaler, norm, ReLU and max pooling of 2x2; the last layer has no pooling. Global
    average pooling and a linear classifier follow. Groups of units: ``layer0``, ``layer1``, ...

    Args:
        hidden: Channels of the layers.
        norm: Normalisation layer; ``None`` omits it. The default is HeteroFL's static batch norm: its statistics are
            gathered after training (``evaluation.recalibrate_batches``).

    Raises:
        ConfigError: No layer is given, or a number of channels is not positive.

    Example:
        >>> SlicedCNN((8, 16)).units((3, 8, 8))
        {'layer0': 8, 'layer1': 16}
    """

    hidden: PositiveInts = (64, 128, 256, 512)
    norm: Norm | None = BatchNorm(running_statistics=False)

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
class SlicedConvNet(NetworkFamily):
    """FedNAS' ConvNet (Xu et al., section 5.1 and Table 2): "sequential CONV, Pooling, and final FC layers".

    Each layer is a 3x3 convolution (with a bias if there is no norm), scaler, norm and ReLU, some followed by max
    pooling of 2x2. An optional fully connected layer with scaler and ReLU follows, then a linear classifier. Groups of
    units: ``conv1``, ``conv2``, ..., and ``linear``.

    The paper's "6 CONV, 1 FC" give K = 7 candidates (section 4.1). A classifier keeps its outputs, so the "FC" is most
    plausibly another layer: set ``linear`` for it. The paper gives no sizes: the default has 0.35 million parameters
    for 128x128 pixels and eight classes, because Table 3 has about a megabyte per upload.

    Args:
        hidden: Channels of the convolutions.
        pools: Distinct numbers of the convolutions before a pooling, counted from 1.
        linear: Units of the fully connected layer before the classifier; ``None`` omits the layer.
        norm: Normalisation layer. The default is no norm: most of the paper's clients would compute statistics from a
            dozen images. Without a norm, convolutions start as in He et al. (2015), so that signals do not vanish.

    Raises:
        ConfigError: A number is not positive, or pooling is to follow an unknown convolution, or one twice.

    Example:
        >>> SlicedConvNet(hidden=(8, 16), pools=(1, 2), linear=20).units((3, 16, 16))
        {'conv1': 8, 'conv2': 16, 'linear': 20}
    """

    hidden: PositiveInts = (32, 32, 64, 64, 128, 128)
    pools: Sequence[int] = (1, 2, 4, 6)
    norm: Norm | None = None
    linear: PositiveInt | None = None

    def __post_init__(self) -> None:
        if len(set(self.pools)) < len(self.pools) or not set(self.pools) <= set(range(1, len(self.hidden) + 1)):
            raise ConfigError(f"supernet.family.pools: {list(self.pools)} must be unique, from 1 to {len(self.hidden)}")
        if (self.linear or 0) % self.multiple:
            raise ConfigError(
                f"supernet.family.linear: {self.linear} must be a multiple of group_size, {self.multiple}"
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


_CHANNELS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedMobileNet(NetworkFamily):
    """MobileNet v1 (Howard et al., 2017, Table 1), the larger network of FedNAS (Xu et al., section 5.1).

    The layers are a full 3x3 convolution, blocks of a 3x3 depthwise and a 1x1 pointwise convolution, global average
    pooling and a linear classifier. Every convolution has a norm (or else a bias) and ReLU. All but the depthwise ones
    have a scaler; a depthwise convolution sums the same number of terms at every width.

    Groups of units: ``conv0``, the channels of the full convolution, and ``conv1``, ``conv2``, ..., the outputs of the
    pointwise ones: 14 groups can lose filters, as FedNAS' K = 14 says (the "13 CONV, 1 FC" of its Table 2 are most
    plausibly the blocks and the classifier).

    Args:
        width: Multiplier of all channels (the authors' width multiplier). Products are rounded to multiples of a group
            norm's group size.
        channels: Output channels of the full convolution and of each block.
        strides: Strides of the full convolution and of each depthwise one. The default is for 224x224 images; the last
            stride is 1, as Table 1's sizes require, although the table says 2. For 32x32 images use
            ``[1, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``, for 16x16 ``[1, 1, 1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]``.
        norm: Normalisation layer; ``None`` omits it. The default is the authors' batch norm.

    Raises:
        ConfigError: A number is not positive, or there are not as many strides as channels.

    Example:
        >>> SlicedMobileNet(0.5, channels=(32, 64, 128), strides=(1, 1, 2)).units((3, 32, 32))
        {'conv0': 16, 'conv1': 32, 'conv2': 64}
    """

    width: PositiveFloat = 1.0
    channels: PositiveInts = _CHANNELS
    strides: PositiveInts = _STRIDES
    norm: Norm | None = BatchNorm()

    def __post_init__(self) -> None:
        check_equal_lengths(channels=self.channels, strides=self.strides)

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


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedResNet(NetworkFamily):
    """HeteroFL's residual network (Diao et al., 2021): pre-activation blocks of two 3x3 convolutions.

    The default is their ResNet-18. Every stage except the first begins with a stride of two. A scaler precedes every
    norm. Groups of units: ``stage0``, ... for the summed outputs of a stage's blocks (the first includes the stem's),
    and ``stage0.block0``, ... for the channels inside a block.

    Args:
        hidden: Channels per stage.
        blocks: Blocks per stage.
        norm: Normalisation layer; ``None`` omits it. The default is HeteroFL's static batch norm, see ``SlicedCNN``.

    Raises:
        ConfigError: A number is not positive, or there are not as many channels as blocks.

    Example:
        >>> SlicedResNet((8, 16), (1, 1)).units((3, 8, 8))
        {'stage0': 8, 'stage0.block0': 8, 'stage1': 16, 'stage1.block0': 16}
    """

    hidden: PositiveInts = (64, 128, 256, 512)
    blocks: PositiveInts = (2, 2, 2, 2)
    norm: Norm | None = BatchNorm(running_statistics=False)

    def __post_init__(self) -> None:
        check_equal_lengths(hidden=self.hidden, blocks=self.blocks)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape)
        units = {}
        for stage, (channels, blocks) in enumerate(zip(self.hidden, self.blocks, strict=True)):
            units[f"stage{stage}"] = channels
            units |= {f"stage{stage}.block{block}": channels for block in range(blocks)}
        return units

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        channels = sizes["stage0"]
        layers: dict[str, nn.Module] = {"stem": convolution(input_shape[0], channels)}
        for stage, blocks in enumerate(self.blocks):
            modules = {}
            for block in range(blocks):
                inner, out = sizes[f"stage{stage}.block{block}"], sizes[f"stage{stage}"]
                stride = 2 if stage and not block else 1
                modules[f"block{block}"] = preactivated_block(channels, inner, out, stride, self.norm, scale)
                channels = out
            layers[f"stage{stage}"] = sequential(**modules)
        return sequential(
            **layers,
            scaler=Scaler(scale),
            norm=norm_layer(self.norm, channels),
            relu=nn.ReLU(),
            **pooled_classifier(channels, num_classes),
        )
