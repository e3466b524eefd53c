"""Perceptrons, convolutional and residual networks, and vision transformers as initial models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_filled, check_image
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    LinearCell,
    LinearHead,
    PooledHead,
    ResidualCell,
    TokenHead,
)
from lit_fednas.supernets.layers import PatchEmbedding, count_patches, transformer_block
from lit_fednas.supernets.norms import GroupNorm, Norm


@checked("supernet.family")
@dataclass(frozen=True)
class GrowablePerceptron(GrowableFamily):
    """Linear layers with ReLU on the flattened input, and a linear head: ``layer1``, ``layer2``, ..., ``head``.

    Args:
        hidden: Units per layer.

    Raises:
        ConfigError: No layer is given, or a number is not positive.

    Example:
        >>> str(GrowablePerceptron([4]).blueprint((1, 8, 8), 10))
        'layer1 4, head'
    """

    hidden: Sequence[PositiveInt] = (16,)

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden)

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        cells: list[tuple[Cell, Sizes]] = [
            (LinearCell(f"layer{number}", entries=0 if number > 1 else prod(input_shape)), {"out": units})
            for number, units in enumerate(self.hidden, start=1)
        ]
        return self.assembled([*cells, (LinearHead("head"), {})], input_shape, num_classes)


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

    Every stage but the first begins with a stride of two and doubles the channels. FedTrans' "modified smaller
    ResNet18" is in its Figure 15, which the text at hand lacks: here it is that of He et al. (2016) with a stem for
    small images and a quarter of the channels. The cells are ``stem``, ``stage1_block1``, ... and ``head``.

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


@dataclass(frozen=True)
class PatchCell(Cell):
    """A linear map of every patch of an image, and a learned vector for its position; it is not transformed."""

    patch_size: int
    tokens: int

    stream_grows: ClassVar[bool] = False  # layer norms average over the embedding, whose means copies would change
    growable: ClassVar[bool] = False

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return PatchEmbedding(inputs, outputs, self.patch_size, self.tokens)


@dataclass(frozen=True)
class TransformerCell(Cell):
    """Self-attention and a perceptron, each preceded by a layer norm and added; heads and hidden units grow."""

    head_dim: int
    mlp_ratio: float

    opens: ClassVar[bool] = False
    hidden: ClassVar[tuple[str, ...]] = ("heads", "units")
    silent: ClassVar[tuple[str, ...]] = ("0.block.attention.output", "1.block.output")

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return transformer_block(inputs, hidden["heads"], self.head_dim, hidden["units"])

    @override
    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        return {"heads": outputs // self.head_dim, "units": round(self.mlp_ratio * outputs)}


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableViT(GrowableFamily):
    """A pre-norm vision transformer whose tokens are averaged (Dosovitskiy et al., 2021; FedTrans, section 5.4).

    Widening gives a layer more heads and hidden units; the embedding keeps its size. The cells are ``patches``,
    ``layer1``, ``layer2``, ... and ``head``.

    Args:
        dim: Entries of the embedding.
        heads: Heads per layer, of ``dim / heads`` entries each.
        depth: Layers.
        patch_size: Height and width of a patch in pixels.
        mlp_ratio: Hidden units of a perceptron, in embeddings.

    Raises:
        ConfigError: A number is not positive, or ``dim`` is not a multiple of ``heads``.

    Example:
        >>> str(GrowableViT(dim=32, heads=2, depth=1).blueprint((3, 8, 8), 10))
        'patches 32, layer1 2/64, head'
    """

    dim: PositiveInt = 64
    heads: PositiveInt = 4
    depth: PositiveInt = 2
    patch_size: PositiveInt = 4
    mlp_ratio: PositiveFloat = 2.0

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError(f"supernet.family.heads: {self.heads} must divide dim, {self.dim}")
        if round(self.mlp_ratio * self.dim) < 1:
            raise ConfigError(f"supernet.family.mlp_ratio: {self.mlp_ratio} leaves no hidden units; raise it")

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape, self.patch_size)
        tokens = count_patches("supernet.family.patch_size", self.patch_size, *input_shape[1:])
        cells: list[tuple[Cell, Sizes]] = [(PatchCell("patches", self.patch_size, tokens), {"out": self.dim})]
        for layer in range(1, self.depth + 1):
            cell = TransformerCell(f"layer{layer}", self.dim // self.heads, self.mlp_ratio)
            cells.append((cell, {"heads": self.heads, "units": round(self.mlp_ratio * self.dim)}))
        return self.assembled([*cells, (TokenHead("head"), {})], input_shape, num_classes)
