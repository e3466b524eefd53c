"""A convolution that is deepened by a cell of another kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class EntryCell(Cell):
    """Convolution and norm, and a Hardswish if asked.

    No convolution could be the identity behind it: the network's other convolutions have a norm or a Hardswish,
    and what it puts out may be negative. So a residual cell is inserted behind it, of the kind that the network
    is made of.

    Args:
        name: Its name.
        norm: Normalisation layer.
        inserted: The cell that deepening inserts, but for its name; it keeps the stream.
        kernel: Side of the kernel, an odd number.
        stride: Of the convolution.
        hardswish: Whether a Hardswish follows.
    """

    norm: Norm
    inserted: Cell
    kernel: int = 3
    stride: int = 1
    hardswish: bool = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``conv``, ``norm`` and, if asked, ``activation``."""
        module = nn.Sequential()
        conv = nn.Conv2d(inputs, outputs, self.kernel, self.stride, padding=self.kernel // 2, bias=False)
        module.add_module("conv", conv)
        module.add_module("norm", self.norm(outputs))
        if self.hardswish:
            module.add_module("activation", nn.Hardswish())
        return module

    def follower(self, name: str) -> Cell:
        """The cell that was given."""
        return replace(self.inserted, name=name)
