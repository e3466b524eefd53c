"""Initial models: perceptron, CNN, ResNet, NAS-Bench-201 (FedTrans, App. A.1), transformer, MobileNetV3-Small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm, prod
from typing import ClassVar, NamedTuple

from torch import nn
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, PositiveInt, PositiveInts, checked
from lit_fednas.supernets.families import Sizes, check_image, round_to_multiple
from lit_fednas.supernets.growing.cells import (
    BlockCell,
    Cell,
    ConvCell,
    Head,
    LinearCell,
    LinearHead,
    PooledHead,
    PreactivatedCell,
    ResidualCell,
    TokenHead,
)
from lit_fednas.supernets.growing.growth import Blueprint, GrowableFamily
from lit_fednas.supernets.layers import (
    GroupNorm,
    Norm,
    PatchEmbedding,
    Residual,
    count_patches,
    sequential,
    transformer_block,
)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowablePerceptron(GrowableFamily):
    """Linear layers with ReLU on the flattened input, and a linear head: ``layer1``, ``layer2``, ..., ``head``.

    Args:
        hidden: Units per layer.

    Example:
        >>> str(GrowablePerceptron([4]).blueprint((1, 8, 8), 10))
        'layer1 4, head'
    """

    hidden: PositiveInts = (16,)

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        cells: list[tuple[Cell, Sizes]] = [
            (LinearCell(f"layer{number}", entries=0 if number > 1 else prod(input_shape)), {"out": units})
            for number, units in enumerate(self.hidden, start=1)
        ]
        return self.assemble([*cells, (LinearHead("head"), {})], input_shape, num_classes)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableCNN(GrowableFamily):
    """3x3 convolutions with norm and ReLU, 2x2 max pooling after all but the last one, and a pooled head.

    The cells are ``conv1``, ``conv2``, ... and ``head``.

    Args:
        hidden: Channels per convolution.
        norm: Normalisation layer; ``None`` omits it.

    Example:
        >>> str(GrowableCNN([8, 16]).blueprint((3, 8, 8), 10))
        'conv1 8, conv2 16, head'
    """

    hidden: PositiveInts = (16, 32, 64)
    norm: Norm | None = GroupNorm(4)

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        last = len(self.hidden)
        check_image(self, input_shape, 2 ** (last - 1))
        cells = [
            (ConvCell(f"conv{number}", norm=self.norm, pool=2 if number < last else 0), {"out": channels})
            for number, channels in enumerate(self.hidden, start=1)
        ]
        return self.assemble([*cells, (PooledHead("head"), {})], input_shape, num_classes)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableResNet18(GrowableFamily):
    """A ResNet-18 for small images: a 3x3 convolution, stages of basic blocks, and a pooled head.

    All stages except the first begin with a stride of two and double the channels. As FedTrans' Figure 15 is not
    available, the default is He et al.'s (2016) network with a quarter of the channels. The cells are ``stem``,
    ``stage1_block1``, ... and ``head``.

    Args:
        width: Channels of the stem and the first stage.
        blocks: Blocks per stage.
        norm: Normalisation layer, with a scale.

    Example:
        >>> str(GrowableResNet18(8, [1, 1]).blueprint((3, 8, 8), 10))
        'stem 8, stage1_block1 8, stage2_block1 16/16, head'
    """

    width: PositiveInt = 16
    blocks: PositiveInts = (2, 2, 2, 2)
    norm: Norm = GroupNorm()

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape)
        cells: list[tuple[Cell, Sizes]] = [(ConvCell("stem", norm=self.norm), {"out": self.width})]
        for stage, blocks in enumerate(self.blocks):
            channels = self.width << stage
            for block in range(blocks):
                first, name = stage > 0 and block == 0, f"stage{stage + 1}_block{block + 1}"
                cell = ResidualCell(name, self.norm, opens=first, stride=2 if first else 1)
                cells.append((cell, {"hidden": channels, "out": channels}))
        return self.assemble([*cells, (PooledHead("head"), {})], input_shape, num_classes)


_STAGES = 3  # number of stages in NAS-Bench-201


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableNASBench201(GrowableFamily):
    """NAS-Bench-201's skeleton (Dong & Yang, 2020, Fig. 1): convolution and norm, three stages of equal cells.

    Residual blocks between the stages halve height and width and double the channels; the head has norm, ReLU, pooling
    and a linear layer. FedTrans starts from "the smallest model in NAS-Bench-201" (Figure 14, not available), but
    that model has no weights in its cells, which could not grow. Here a stage has one cell (the benchmark: five) with a
    skip and the fewest convolutions that give hidden units:
    ``|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|``.

    The cells are ``stem``, ``stage1_cell1``, ..., ``reduction1``, ``stage2_cell1``, ... and ``head``. After the stem,
    deepening inserts a residual block like those between the stages, without a stride.

    Args:
        width: Channels of the stem and the first stage.
        cells: Cells per stage.
        norm: Normalisation layer, with a scale.

    Example:
        >>> str(GrowableNASBench201(8).blueprint((3, 8, 8), 10))
        'stem 8, stage1_cell1 8, reduction1 16/16, stage2_cell1 16, reduction2 32/32, stage3_cell1 32, head'
    """

    width: PositiveInt = 16
    cells: PositiveInt = 1
    norm: Norm = GroupNorm()

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape)
        # The stem's output may be negative, so that only a residual cell can be the identity after it.
        stem = ConvCell("stem", norm=self.norm, activation=None, inserted=PreactivatedCell("", self.norm))
        cells: list[tuple[Cell, Sizes]] = [(stem, {"out": self.width})]
        for stage in range(_STAGES):
            channels = self.width << stage
            if stage:
                reduction = PreactivatedCell(f"reduction{stage}", self.norm, opens=True, stride=2)
                cells.append((reduction, {"hidden": channels, "out": channels}))
            for number in range(1, self.cells + 1):
                cell = PreactivatedCell(f"stage{stage + 1}_cell{number}", self.norm, last_kernel=1)
                cells.append((cell, {"hidden": channels}))
        return self.assemble([*cells, (PooledHead("head", self.norm), {})], input_shape, num_classes)


@dataclass(frozen=True)
class PatchCell(Cell):
    """A linear map of every patch, plus a learned vector for its position; it is never transformed."""

    patch_size: int
    tokens: int

    growable: ClassVar[bool] = False  # copied units would change the mean of a layer norm over the embedding

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return PatchEmbedding(inputs, outputs, self.patch_size, self.tokens)


@dataclass(frozen=True)
class TransformerCell(Cell):
    """Self-attention and a perceptron, both pre-norm and residual; heads and hidden units grow."""

    head_dim: int
    mlp_ratio: float

    opens: ClassVar[bool] = False
    hidden: ClassVar[tuple[str, ...]] = ("heads", "units")
    silent: ClassVar[tuple[str, ...]] = ("0.block.attention.output", "1.block.output")

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return transformer_block(inputs, hidden["heads"], self.head_dim, hidden["units"])

    @override
    def fresh_sizes(self, outputs: int) -> dict[str, int]:
        return {"heads": outputs // self.head_dim, "units": round(self.mlp_ratio * outputs)}


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableViT(GrowableFamily):
    """A pre-norm vision transformer with averaged tokens (Dosovitskiy et al., 2021; FedTrans, section 5.4).

    Widening gives a layer more heads and hidden units; the embedding keeps its size. The cells are ``patches``,
    ``layer1``, ``layer2``, ... and ``head``.

    Args:
        dim: Entries of the embedding.
        heads: Heads per layer, a divisor of ``dim``; each has ``dim / heads`` entries.
        depth: Number of layers.
        patch_size: Height and width of a patch in pixels.
        mlp_ratio: Hidden units of a perceptron, as a multiple of ``dim``.

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
        return self.assemble([*cells, (TokenHead("head"), {})], input_shape, num_classes)


_SQUEEZE = 4  # expanded channels per squeezed one
_DIVISOR = 8
_STEM, _LAST, _UNITS = 16, 576, 1024


@dataclass(frozen=True)
class InvertedResidualCell(BlockCell):
    """A 1x1 convolution to ``hidden`` channels, a depthwise one, squeeze-and-excitation, a 1x1 convolution back."""

    expansion: float = 1.0  # hidden channels per output channel of an inserted cell
    kernel: int = 3
    expands: bool = True
    squeezes: bool = False
    activation: type[nn.Module] = nn.ReLU

    silent: ClassVar[tuple[str, ...]] = ("block.project.1",)

    @property
    @override
    def hidden(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("hidden",) * self.expands + ("squeeze",) * self.squeezes

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        middle = hidden["hidden"] if self.expands else inputs
        layer = partial(Conv2dNormActivation, norm_layer=self.norm, activation_layer=self.activation)
        squeeze = partial(SqueezeExcitation, scale_activation=nn.Hardsigmoid)
        block = sequential(
            expand=layer(inputs, middle, 1) if self.expands else None,
            depthwise=layer(middle, middle, self.kernel, self.stride, groups=middle),
            squeeze=squeeze(middle, hidden["squeeze"]) if self.squeezes else None,
            project=layer(middle, outputs, 1, activation_layer=None),
        )
        return block if self.opens else Residual(block)

    @override
    def follower(self, name: str) -> InvertedResidualCell:
        return replace(super().follower(name), expands=True)

    @override
    def fresh_sizes(self, outputs: int) -> dict[str, int]:
        middle = round_to_multiple(self.expansion * outputs, self.norm.multiple)
        sizes = {"hidden": middle, "squeeze": round_to_multiple(middle / _SQUEEZE, self.norm.multiple)}
        return {group: sizes[group] for group in self.hidden}


@dataclass(frozen=True)
class PerceptronHead(Head):
    """The mean over an image's pixels and two linear layers with Hardswish; the ``units`` between them grow."""

    hidden: ClassVar[tuple[str, ...]] = ("units",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return sequential(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(inputs, hidden["units"]),
            activation=nn.Hardswish(),
            classifier=nn.Linear(hidden["units"], outputs),
        )


class _Row(NamedTuple):
    """A row of Howard et al.'s Table 2; ``reduces`` marks a stride of two."""

    kernel: int
    expanded: int
    out: int
    activation: type[nn.Module] = nn.Hardswish
    squeezes: bool = True
    reduces: bool = False


_ROWS = (
    _Row(3, 16, 16, nn.ReLU, reduces=True),
    _Row(3, 72, 24, nn.ReLU, squeezes=False, reduces=True),
    _Row(3, 88, 24, nn.ReLU, squeezes=False),
    _Row(5, 96, 40, reduces=True),
    *(_Row(5, 240, 40),) * 2,
    _Row(5, 120, 48),
    _Row(5, 144, 48),
    _Row(5, 288, 96, reduces=True),
    *(_Row(5, 576, 96),) * 2,
)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableMobileNetV3Small(GrowableFamily):
    """The network of Howard et al.'s Table 2, without dropout.

    The cells are ``stem``, ``block1`` to ``block11``, ``last`` (the convolution before the pooling) and ``head``.
    A block is residual where the table has equal input and output channels and no reduction. After ``stem`` and
    ``last``, deepening inserts a residual block with as many expanded channels as output channels.

    Args:
        width: Multiplier of all channels. As in the paper, products are rounded to multiples of eight; here also of a
            group norm's group size.
        strides: Strides of the five layers with a stride of two in the table: the stem and blocks 1, 2, 4 and 9. The
            default is for 32x32 images; the table's ``[2, 2, 2, 2, 2]`` is for 224x224 images.
        norm: Normalisation layer, with a scale.

    Example:
        >>> first = GrowableMobileNetV3Small(0.5).blueprint((3, 32, 32), 10)
        >>> len(first.cells), first.sizes["block4.hidden"], first.sizes["block4.out"]
        (14, 48, 24)
    """

    width: PositiveFloat = 1.0
    strides: Sequence[PositiveInt] = (1, 1, 2, 2, 2)
    norm: Norm = GroupNorm()

    def __post_init__(self) -> None:
        reductions = 1 + sum(row.reduces for row in _ROWS)
        if len(self.strides) != reductions:
            raise ConfigError(f"supernet.family.strides: {list(self.strides)} must be {reductions} numbers")

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape)
        strides = iter(self.strides)
        inserted = InvertedResidualCell("", self.norm, squeezes=True)
        stem = ConvCell("stem", 3, next(strides), self.norm, nn.Hardswish, inserted=inserted)
        cells: list[tuple[Cell, Sizes]] = [(stem, {"out": self._scale(_STEM)})]
        inputs = _STEM
        for number, row in enumerate(_ROWS, start=1):
            cell = InvertedResidualCell(
                f"block{number}",
                self.norm,
                expansion=row.expanded / row.out,
                kernel=row.kernel,
                stride=next(strides) if row.reduces else 1,
                opens=row.out != inputs or row.reduces,
                expands=row.expanded != inputs,
                squeezes=row.squeezes,
                activation=row.activation,
            )
            hidden = self._scale(row.expanded)
            squeeze = round_to_multiple(hidden // _SQUEEZE, lcm(_DIVISOR, self.multiple))
            cells.append((cell, {"hidden": hidden, "squeeze": squeeze, "out": self._scale(row.out)}))
            inputs = row.out
        inserted = replace(inserted, kernel=5, activation=nn.Hardswish)
        last = ConvCell("last", 1, 1, self.norm, nn.Hardswish, inserted=inserted)
        cells.append((last, {"out": self._scale(_LAST)}))
        cells.append((PerceptronHead("head"), {"units": self._scale(_UNITS)}))
        return self.assemble(cells, input_shape, num_classes)

    def _scale(self, channels: int) -> int:
        return round_to_multiple(self.width * channels, lcm(_DIVISOR, self.multiple))
