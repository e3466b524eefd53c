"""Convolutional and residual networks as initial models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_filled, check_image
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, ConvCell, PooledHead, ResidualCell, check_affine
from lit_fednas.supernets.norms import GroupNorm, Norm


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableCNN(GrowableFamily):
    """3x3 convolutions with norm and ReLU, each but the last followed by 2x2 max pooling, and a pooled head.

    The cells are ``conv1``, ``conv2``, ... and ``head``.

    Args:
        hidden: Channels per convolution.
        norm: Normalisation layer, ``None`` for none.

    Raises:
        ConfigError: No convolution is given, or a number is not positive.

    Example:
        >>> str(GrowableCNN([8, 16]).blueprint((3, 8, 8), 10))
        'conv1 8, conv2 16, head'
    """

    hidden: Sequence[PositiveInt] = (16, 32, 64)
    norm: Norm | None = GroupNorm(4)

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden)

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        last = len(self.hidden)
        check_image(self, input_shape, 2 ** (last - 1))
        cells = [
            (ConvCell(f"conv{number}", norm=self.norm, pool=2 if number < last else 0), {"out": channels})
            for number, channels in enumerate(self.hidden, start=1)
        ]
        return self.assembled([*cells, (PooledHead("head"), {})], input_shape, num_classes)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableResNet18(GrowableFamily):
    """A ResNet-18 for small images: a 3x3 convolution, stages of basic blocks, and a pooled head.

    Every stage but the first begins with a stride of two and has twice the channels of the one before. FedTrans'
    "modified smaller ResNet18" is in its Figure 15, which the text at hand lacks: here it is the ResNet-18 of He
    et al. (2016) with a stem for small images and a quarter of the channels.

    The cells are ``stem``, ``stage1_block1``, ``stage1_block2``, ``stage2_block1``, ... and ``head``.

    Args:
        width: Channels of the stem and the first stage.
        blocks: Blocks per stage.
        norm: Normalisation layer, with a scale.

    Raises:
        ConfigError: A number is not positive, or the norm has no scale.

    Example:
        >>> str(GrowableResNet18(8, [1, 1]).blueprint((3, 8, 8), 10))
        'stem 8, stage1_block1 8, stage2_block1 16/16, head'
    """

    width: PositiveInt = 16
    blocks: Sequence[PositiveInt] = (2, 2, 2, 2)
    norm: Norm = GroupNorm()

    def __post_init__(self) -> None:
        check_filled(blocks=self.blocks)
        check_affine(self.norm, "ResidualCell")

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape)
        cells: list[tuple[Cell, Sizes]] = [(ConvCell("stem", norm=self.norm), {"out": self.width})]
        for stage, blocks in enumerate(self.blocks):
            channels = self.width << stage
            for block in range(blocks):
                first, name = stage > 0 and block == 0, f"stage{stage + 1}_block{block + 1}"
                cell = ResidualCell(name, self.norm, projection=first, stride=2 if first else 1)
                cells.append((cell, {"hidden": channels, "out": channels}))
        return self.assembled([*cells, (PooledHead("head"), {})], input_shape, num_classes)
