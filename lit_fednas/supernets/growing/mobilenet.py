"""MobileNetV3-Small as an initial model, and its cells (Howard et al., 2019; FedTrans, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import ClassVar, NamedTuple

from torch import nn
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.elastic_space import divisible
from lit_fednas.supernets.families import Sizes, check_image
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, ConvCell, Head, NormedCell
from lit_fednas.supernets.layers import Residual, sequential
from lit_fednas.supernets.norms import GroupNorm, Norm

_SQUEEZE = 4  # expanded channels per squeezed one
_DIVISOR = 8
_STEM, _LAST, _UNITS = 16, 576, 1024


@dataclass(frozen=True)
class InvertedResidualCell(NormedCell):
    """1x1 convolution to ``hidden`` channels, depthwise convolution, squeeze and excitation, 1x1 convolution to few.

    A norm follows every convolution, and the activation all but the last. A residual cell adds its input, any other
    opens a stream; this is a setting, as widths may become equal when it grows. Its follower is residual.
    """

    expansion: float  # hidden channels per output channel of an inserted cell
    kernel: int = 3
    stride: int = 1
    residual: bool = True
    expands: bool = True
    squeezes: bool = False
    activation: type[nn.Module] = nn.ReLU

    silent: ClassVar[tuple[str, ...]] = ("block.project.1",)

    @property
    @override
    def opens(self) -> bool:  # type: ignore[override]
        return not self.residual

    @property
    @override
    def hidden(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("hidden",) * self.expands + ("squeeze",) * self.squeezes

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        middle = hidden["hidden"] if self.expands else inputs
        layer = partial(Conv2dNormActivation, norm_layer=self.norm, activation_layer=self.activation)
        squeeze = partial(SqueezeExcitation, scale_activation=nn.Hardsigmoid)
        block = sequential(
            expand=layer(inputs, middle, 1) if self.expands else None,
            depthwise=layer(middle, middle, self.kernel, self.stride, groups=middle),
            squeeze=squeeze(middle, hidden["squeeze"]) if self.squeezes else None,
            project=layer(middle, outputs, 1, activation_layer=None),
        )
        return Residual(block) if self.residual else block

    @override
    def follower(self, name: str) -> InvertedResidualCell:
        return replace(self, name=name, stride=1, residual=True, expands=True)

    @override
    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        middle = divisible(self.expansion * outputs, self.norm.multiple)
        sizes = {"hidden": middle, "squeeze": divisible(middle / _SQUEEZE, self.norm.multiple)}
        return {group: sizes[group] for group in self.hidden}


@dataclass(frozen=True)
class PerceptronHead(Head):
    """The mean over an image's pixels and two linear layers with Hardswish; the ``units`` between them grow."""

    hidden: ClassVar[tuple[str, ...]] = ("units",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return sequential(
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(inputs, hidden["units"]),
            activation=nn.Hardswish(),
            classifier=nn.Linear(hidden["units"], outputs),
        )


class _Row(NamedTuple):
    """A row of Howard et al.'s Table 2; ``reduces`` where it has a stride of two."""

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
    A block is residual where the table has as many channels in as out and no reduction. Behind ``stem`` and ``last``,
    deepening inserts a residual block with as many expanded as output channels.

    Args:
        width: By how much all channels are multiplied, rounded to multiples of eight (and of a group norm's group
            size) as the authors do.
        strides: Of the five layers with a stride of two in the table: the stem and the blocks 1, 2, 4 and 9. The
            default is for 32x32 images; ``[2, 2, 2, 2, 2]`` is the table's, for 224x224.
        norm: Normalisation layer, with a scale.

    Raises:
        ConfigError: A number is not positive, there are not five strides, or the norm has no scale.

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
        inserted = InvertedResidualCell("", self.norm, expansion=1.0, kernel=3, squeezes=True)
        stem = ConvCell("stem", 3, next(strides), self.norm, nn.Hardswish, inserted=inserted)
        cells: list[tuple[Cell, Sizes]] = [(stem, {"out": self._scaled(_STEM)})]
        inputs = _STEM
        for number, row in enumerate(_ROWS, start=1):
            cell = InvertedResidualCell(
                f"block{number}",
                self.norm,
                expansion=row.expanded / row.out,
                kernel=row.kernel,
                stride=next(strides) if row.reduces else 1,
                residual=row.out == inputs and not row.reduces,
                expands=row.expanded != inputs,
                squeezes=row.squeezes,
                activation=row.activation,
            )
            hidden = self._scaled(row.expanded)
            squeeze = divisible(hidden // _SQUEEZE, lcm(_DIVISOR, self.multiple))
            cells.append((cell, {"hidden": hidden, "squeeze": squeeze, "out": self._scaled(row.out)}))
            inputs = row.out
        inserted = replace(inserted, kernel=5, activation=nn.Hardswish)
        last = ConvCell("last", 1, 1, self.norm, nn.Hardswish, inserted=inserted)
        cells.append((last, {"out": self._scaled(_LAST)}))
        cells.append((PerceptronHead("head"), {"units": self._scaled(_UNITS)}))
        return self.assembled(cells, input_shape, num_classes)

    def _scaled(self, channels: int) -> int:
        return divisible(self.width * channels, lcm(_DIVISOR, self.multiple))
