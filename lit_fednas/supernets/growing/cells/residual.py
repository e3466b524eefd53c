"""The basic block of a residual network as a cell (FedTrans, section 3: "a ResNet block")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.elastic_resnet import ResidualBlock
from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.silence import check_affine, silence
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class ResidualCell(Cell):
    """Convolution, norm, ReLU, convolution, norm; its input is added; ReLU (He et al., 2016, the basic block).

    With a projection, a 1x1 convolution and a norm stand in the shortcut, and the cell opens a stream. Without one
    it keeps the stream, and only ``hidden``, the channels between its convolutions, is its own.

    Its follower is a block without projection whose last norm has a scale of zero: it gets what went through a
    ReLU, so that the ReLU behind the sum changes nothing. It must therefore stand behind a cell that puts out
    nothing negative.

    Args:
        name: Its name.
        norm: Normalisation layer, with a scale.
        projection: Whether a convolution stands in the shortcut.
        stride: Of the first convolution and of the shortcut.

    Raises:
        ConfigError: The norm has no scale, or there is a stride and no projection.
    """

    norm: Norm
    projection: bool = False
    stride: int = 1

    hidden: ClassVar[tuple[str, ...]] = ("hidden",)

    def __post_init__(self) -> None:
        check_affine(self.norm, type(self).__name__)
        if self.stride != 1 and not self.projection:
            raise ConfigError(f"supernet.family: cell {self.name} has stride {self.stride} and needs a projection")

    @property
    def opens(self) -> bool:  # type: ignore[override]
        """With a projection."""
        return self.projection

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``conv1``, ``norm1``, ``conv2``, ``norm2`` and ``shortcut``."""
        return _Block(inputs, hidden["hidden"], outputs, self.stride, self.norm, self.projection)

    def follower(self, name: str) -> ResidualCell:
        """A block that keeps the stream."""
        return ResidualCell(name, self.norm)

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """As many channels inside as outside, as in all basic blocks."""
        return {"hidden": outputs}

    def make_identity(self, module: nn.Module) -> None:
        """Nothing is added to its input."""
        silence(module.get_submodule("norm2"))


class _Block(ResidualBlock):
    """Whether it projects is said, and not seen from its widths, which may come to be equal as it grows."""

    def __init__(self, inputs: int, middle: int, out: int, stride: int, norm: Norm, projection: bool) -> None:
        super().__init__(inputs, middle, out, stride, norm)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, out, 1, stride=stride, bias=False), norm(out))
            if projection
            else nn.Identity()
        )
