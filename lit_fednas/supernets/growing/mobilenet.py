"""MobileNetV3-Small as an initial model, and its cells (Howard et al., 2019; FedTrans, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import ClassVar

from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.elastic_resnet import divisible
from lit_fednas.supernets.families import check_image, norm_multiple
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import (
    Cell,
    EntryCell,
    check_affine,
    silence,
)
from lit_fednas.supernets.norms import GroupNorm, Norm

_SQUEEZE = 4  # expanded channels per squeezed one


@dataclass(frozen=True)
class InvertedResidualCell(Cell):
    """1x1 convolution to more channels, depthwise convolution, squeeze and excitation, 1x1 convolution to few.

    A norm follows every convolution, and the activation all but the last. A residual cell adds its input, and so
    keeps the stream; any other opens one. Which it is, is said, and not seen from its widths, which may come to be
    equal as it grows. ``hidden`` are the expanded channels, ``squeeze`` those between squeeze and excitation; both
    are its own, and grow when it is widened.

    Its follower is a residual one, with expansion and stride 1, whose last norm has a scale of zero.

    Args:
        name: Its name.
        norm: Normalisation layer, with a scale.
        expansion: Expanded channels per channel put out, for cells that are inserted behind it.
        kernel: Side of the depthwise kernel, an odd number.
        stride: Of the depthwise convolution.
        residual: Whether its input is added.
        expands: Whether there is an expanding convolution; without it the depthwise one works on what comes in,
            and there is no group ``hidden``.
        squeezes: Whether there is squeeze and excitation.
        hardswish: Whether the activation is Hardswish; else it is ReLU.

    Raises:
        ConfigError: The norm has no scale, or a residual cell has a stride.
    """

    norm: Norm
    expansion: float
    kernel: int = 3
    stride: int = 1
    residual: bool = True
    expands: bool = True
    squeezes: bool = False
    hardswish: bool = False

    def __post_init__(self) -> None:
        check_affine(self.norm, type(self).__name__)
        if self.stride != 1 and self.residual:
            raise ConfigError(f"supernet.family: cell {self.name} has stride {self.stride} and cannot be residual")

    @property
    def opens(self) -> bool:  # type: ignore[override]
        """Where its input is not added."""
        return not self.residual

    @property
    def hidden(self) -> tuple[str, ...]:  # type: ignore[override]
        """``hidden`` and ``squeeze``, as far as they are there."""
        return ("hidden",) * self.expands + ("squeeze",) * self.squeezes

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``expand``, ``depthwise``, ``squeeze`` and ``project``, as far as they are there."""
        middle = hidden["hidden"] if self.expands else inputs
        activation = nn.Hardswish if self.hardswish else nn.ReLU
        module = _Sum() if self.residual else nn.Sequential()
        if self.expands:
            module.add_module("expand", _conv(inputs, middle, 1, self.norm, activation))
        depthwise = _conv(middle, middle, self.kernel, self.norm, activation, self.stride, groups=middle)
        module.add_module("depthwise", depthwise)
        if self.squeezes:
            module.add_module("squeeze", SqueezeExcitation(middle, hidden["squeeze"]))
        module.add_module("project", _conv(middle, outputs, 1, self.norm))
        return module

    def follower(self, name: str) -> InvertedResidualCell:
        """The like, such that it keeps the stream."""
        return replace(self, name=name, stride=1, residual=True, expands=True)

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """The expansion as given, and a quarter of it squeezed, rounded to what the norm takes."""
        multiple = norm_multiple(self.norm)
        middle = divisible(self.expansion * outputs, multiple)
        sizes = {"hidden": middle, "squeeze": divisible(middle / _SQUEEZE, multiple)}
        return {group: sizes[group] for group in self.hidden}

    def make_identity(self, module: nn.Module) -> None:
        """Nothing is added to its input."""
        silence(module.get_submodule("project.norm"))


@dataclass(frozen=True)
class PerceptronHead(Cell):
    """The mean over an image's places, a linear layer with Hardswish, and a linear layer.

    Args:
        name: Its name.
        units: Outputs of the first linear layer; they do not grow.
    """

    units: int

    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``pool``, ``flatten``, ``linear``, ``activation`` and ``classifier``."""
        module = nn.Sequential()
        module.add_module("pool", nn.AdaptiveAvgPool2d(1))
        module.add_module("flatten", nn.Flatten())
        module.add_module("linear", nn.Linear(inputs, self.units))
        module.add_module("activation", nn.Hardswish())
        module.add_module("classifier", nn.Linear(self.units, outputs))
        return module


class SqueezeExcitation(nn.Module):
    """Every channel is scaled by a number between 0 and 1, found from the means of all (Hu et al., 2018).

    With MobileNetV3's hard sigmoid, and its 1x1 convolutions in place of linear layers.

    Args:
        channels: Channels.
        squeezed: Hidden units.
    """

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to the same shape."""
        return x * self.gate(self.excite(self.relu(self.reduce(self.pool(x)))))


class _Sum(nn.Sequential):
    """Modules in a row, and their input added."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return x + super().forward(x)


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    norm: Norm,
    activation: type[nn.Module] | None = None,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    """A convolution without bias, a norm, and an activation if asked."""
    module = nn.Sequential()
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    module.add_module("conv", conv)
    module.add_module("norm", norm(outputs))
    if activation is not None:
        module.add_module("activation", activation())
    return module


_NORM = GroupNorm()
_DIVISOR = 8
_STEM, _LAST, _UNITS = 16, 576, 1024


@dataclass(frozen=True)
class _Row:
    """A row of Howard et al.'s Table 2; ``reduces`` where it has a stride of two."""

    kernel: int
    expanded: int
    out: int
    squeezes: bool
    hardswish: bool
    reduces: bool = False


_ROWS = (
    _Row(3, 16, 16, squeezes=True, hardswish=False, reduces=True),
    _Row(3, 72, 24, squeezes=False, hardswish=False, reduces=True),
    _Row(3, 88, 24, squeezes=False, hardswish=False),
    _Row(5, 96, 40, squeezes=True, hardswish=True, reduces=True),
    _Row(5, 240, 40, squeezes=True, hardswish=True),
    _Row(5, 240, 40, squeezes=True, hardswish=True),
    _Row(5, 120, 48, squeezes=True, hardswish=True),
    _Row(5, 144, 48, squeezes=True, hardswish=True),
    _Row(5, 288, 96, squeezes=True, hardswish=True, reduces=True),
    _Row(5, 576, 96, squeezes=True, hardswish=True),
    _Row(5, 576, 96, squeezes=True, hardswish=True),
)


@dataclass(frozen=True)
class GrowableMobileNetV3Small(GrowableFamily):
    """The network of Howard et al.'s Table 2, without dropout.

    The cells are ``stem``, ``block1`` to ``block11``, ``last`` (the convolution before the pooling) and ``head``.
    A block is residual where the table has as many channels in as out and no reduction, at every width. Behind
    ``stem`` and ``last``, deepening inserts a residual block with as many expanded channels as it puts out.

    Args:
        width: What all channels are multiplied by, rounded to multiples of eight (and of a group norm's group
            size) as the authors do.
        strides: Of the five places where the table has a stride of two: the stem and the blocks 1, 2, 4 and 9. The
            default is for 32x32 images; ``[2, 2, 2, 2, 2]`` is the table's, for 224x224.
        norm: Normalisation layer, with a scale.

    Raises:
        ConfigError: A number is not positive, there are not five strides, or the norm has no scale.

    Example:
        >>> first = GrowableMobileNetV3Small(0.5).blueprint((3, 32, 32), 10)
        >>> len(first.cells), first.sizes["block4.hidden"], first.sizes["block4.out"]
        (14, 48, 24)
    """

    width: float = 1.0
    strides: Sequence[int] = (1, 1, 2, 2, 2)
    norm: Norm = _NORM

    def __post_init__(self) -> None:
        check_affine(self.norm, "InvertedResidualCell")
        if not self.width > 0:
            raise ConfigError(f"supernet.family.width: {self.width} must be above 0")
        reductions = 1 + sum(row.reduces for row in _ROWS)
        if len(self.strides) != reductions or min(self.strides) < 1:
            raise ConfigError(
                f"supernet.family.strides: {list(self.strides)} must be {reductions} numbers of at least 1"
            )

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Stem, blocks, last convolution and head."""
        check_image(self, input_shape)
        strides = iter(self.strides)
        stem = EntryCell("stem", self.norm, self._inserted(3, hardswish=False), 3, next(strides), hardswish=True)
        cells: list[Cell] = [stem]
        sizes = {"stem.out": self._scaled(_STEM)}
        inputs = _STEM
        for place, row in enumerate(_ROWS, start=1):
            cell = InvertedResidualCell(
                f"block{place}",
                self.norm,
                expansion=row.expanded / row.out,
                kernel=row.kernel,
                stride=next(strides) if row.reduces else 1,
                residual=row.out == inputs and not row.reduces,
                expands=row.expanded != inputs,
                squeezes=row.squeezes,
                hardswish=row.hardswish,
            )
            cells.append(cell)
            own = {
                "hidden": self._scaled(row.expanded),
                "squeeze": self._squeezed(row),
                "out": self._scaled(row.out),
            }
            groups = [*cell.hidden, *(["out"] if cell.opens else [])]
            sizes |= {f"{cell.name}.{group}": own[group] for group in groups}
            inputs = row.out
        cells.append(EntryCell("last", self.norm, self._inserted(5, hardswish=True), 1, hardswish=True))
        sizes["last.out"] = self._scaled(_LAST)
        cells.append(PerceptronHead("head", self._scaled(_UNITS)))
        return Blueprint(tuple(cells), sizes, input_shape[0], num_classes, self.multiple)

    def _inserted(self, kernel: int, hardswish: bool) -> InvertedResidualCell:
        return InvertedResidualCell("", self.norm, 1.0, kernel, squeezes=True, hardswish=hardswish)

    def _scaled(self, channels: int) -> int:
        return divisible(self.width * channels, lcm(_DIVISOR, self.multiple))

    def _squeezed(self, row: _Row) -> int:
        return divisible(self._scaled(row.expanded) // _SQUEEZE, lcm(_DIVISOR, self.multiple))
