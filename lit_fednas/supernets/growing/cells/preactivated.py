"""Cells of networks in which ReLU and convolution stand in front of the norm, as in NAS-Bench-201's.

Their streams are sums that no ReLU follows, so they may be negative, and nothing but a residual cell is the
identity on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.block import BlockCell
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class PreactivatedCell(BlockCell):
    """ReLU, convolution and norm, twice; its input is added.

    With a projection it is NAS-Bench-201's residual block between stages (Dong & Yang, 2020, section 2.1): in the
    shortcut stand an average pooling, where there is a stride, and a 1x1 convolution.
    """

    last_norm: ClassVar[str] = "second.norm"

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``first``, ``second`` and ``shortcut``."""
        return _Block(inputs, hidden["hidden"], outputs, self.stride, self.norm, self.projection)


@dataclass(frozen=True)
class PreactivatedHead(Cell):
    """Norm, ReLU, the mean over an image's places, and a linear layer."""

    norm: Norm

    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``norm``, ``relu``, ``pool``, ``flatten`` and ``classifier``."""
        module = nn.Sequential()
        module.add_module("norm", self.norm(inputs))
        module.add_module("relu", nn.ReLU())
        module.add_module("pool", nn.AdaptiveAvgPool2d(1))
        module.add_module("flatten", nn.Flatten())
        module.add_module("classifier", nn.Linear(inputs, outputs))
        return module


def preactivated_conv(inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Sequential:
    """ReLU, a convolution without bias that keeps height and width (but for its stride), and a norm."""
    module = nn.Sequential()
    module.add_module("relu", nn.ReLU())
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    module.add_module("conv", conv)
    module.add_module("norm", norm(outputs))
    return module


class _Block(nn.Module):
    def __init__(self, inputs: int, middle: int, out: int, stride: int, norm: Norm, projection: bool) -> None:
        super().__init__()
        self.first = preactivated_conv(inputs, middle, 3, norm, stride)
        self.second = preactivated_conv(middle, out, 3, norm)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut.add_module("pool", nn.AvgPool2d(stride, ceil_mode=True))
        if projection:
            self.shortcut.add_module("conv", nn.Conv2d(inputs, out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, inputs, h, w]`` to ``[batch, out, h / stride, w / stride]``."""
        return self.shortcut(x) + self.second(self.first(x))
