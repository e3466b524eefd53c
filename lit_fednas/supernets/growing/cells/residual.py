"""The basic block of a residual network as a cell (FedTrans, section 3: "a ResNet block")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from lit_fednas.supernets.elastic_resnet import ResidualBlock
from lit_fednas.supernets.growing.cells.block import BlockCell
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class ResidualCell(BlockCell):
    """Convolution, norm, ReLU, convolution, norm; its input is added; ReLU (He et al., 2016, the basic block).

    With a projection, a 1x1 convolution and a norm stand in the shortcut. Its follower gets what went through a
    ReLU, so that the ReLU behind the sum changes nothing: it must stand behind a cell that puts out nothing
    negative.
    """

    last_norm: ClassVar[str] = "norm2"

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``conv1``, ``norm1``, ``conv2``, ``norm2`` and ``shortcut``."""
        return _Block(inputs, hidden["hidden"], outputs, self.stride, self.norm, self.projection)


class _Block(ResidualBlock):
    """Whether it projects is said, and not seen from its widths, which may come to be equal as it grows."""

    def __init__(self, inputs: int, middle: int, out: int, stride: int, norm: Norm, projection: bool) -> None:
        super().__init__(inputs, middle, out, stride, norm)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, out, 1, stride=stride, bias=False), norm(out))
            if projection
            else nn.Identity()
        )
