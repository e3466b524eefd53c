"""A convolution as a cell (FedTrans, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.norms import Norm


@dataclass(frozen=True)
class ConvCell(Cell):
    """Convolution, norm, ReLU, and a pooling if asked.

    Its follower is a convolution of the same kernel without norm, pooling or stride, an identity at first: a norm
    cannot be the identity on every batch it is trained with. The identity goes through the ReLU, since what it
    gets is not negative; so a cell without ReLU cannot be deepened.

    Args:
        name: Its name.
        kernel: Side of the kernel, an odd number.
        stride: Of the convolution.
        norm: Normalisation layer; none if not given, and then the convolution has a bias.
        relu: Whether there is a ReLU.
        pool: Side and stride of the max pooling at the end; 0 for none.
    """

    kernel: int = 3
    stride: int = 1
    norm: Norm | None = None
    relu: bool = True
    pool: int = 0

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``conv``, ``norm``, ``relu`` and ``pool``, as far as they are there."""
        module = nn.Sequential()
        bias = self.norm is None
        conv = nn.Conv2d(inputs, outputs, self.kernel, self.stride, padding=self.kernel // 2, bias=bias)
        module.add_module("conv", conv)
        if self.norm is not None:
            module.add_module("norm", self.norm(outputs))
        if self.relu:
            module.add_module("relu", nn.ReLU())
        if self.pool:
            module.add_module("pool", nn.MaxPool2d(self.pool))
        return module

    def follower(self, name: str) -> ConvCell | None:
        """A plain convolution with ReLU."""
        return ConvCell(name, self.kernel) if self.relu else None

    @torch.no_grad()
    def make_identity(self, module: nn.Module) -> None:
        """A Dirac kernel, no bias."""
        conv = module.get_submodule("conv")
        assert isinstance(conv, nn.Conv2d)
        nn.init.dirac_(conv.weight)
        assert conv.bias is not None
        conv.bias.zero_()
