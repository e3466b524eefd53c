"""MobileNetV3-Small as an initial model (Howard et al., 2019; FedTrans, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.elastic_resnet import divisible
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, EntryCell, InvertedResidualCell, PerceptronHead
from lit_fednas.supernets.growing.cells.silence import check_affine
from lit_fednas.supernets.norms import GroupNorm, Norm
from lit_fednas.supernets.width_families import check_image, norm_multiple

_NORM = GroupNorm()
_DIVISOR = 8
_STEM, _LAST, _UNITS = 16, 576, 1024
_SQUEEZE = 4


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
