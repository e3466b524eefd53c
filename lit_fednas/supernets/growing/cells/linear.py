"""Linear layers as cells (FedTrans, section 4.1, names them next to convolutions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from lit_fednas.supernets.growing.cells.base import Cell


@dataclass(frozen=True)
class LinearCell(Cell):
    """Linear layer and ReLU.

    Its follower is such a cell with the identity matrix, which goes through the ReLU, since what it gets is not
    negative.

    Args:
        name: Its name.
        area: Places of the feature maps that it gets, which are flattened first; not given where it gets vectors.
    """

    area: int | None = None

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``flatten`` (with an area), ``linear`` and ``relu``."""
        module = nn.Sequential()
        if self.area is not None:
            module.add_module("flatten", nn.Flatten())  # channel by channel: a unit's places are adjacent
        module.add_module("linear", nn.Linear(inputs * (self.area or 1), outputs))
        module.add_module("relu", nn.ReLU())
        return module

    def follower(self, name: str) -> LinearCell:
        """A linear layer on vectors."""
        return LinearCell(name)

    @torch.no_grad()
    def make_identity(self, module: nn.Module) -> None:
        """The identity matrix, no bias."""
        linear = module.get_submodule("linear")
        assert isinstance(linear, nn.Linear)
        nn.init.eye_(linear.weight)
        linear.bias.zero_()


@dataclass(frozen=True)
class LinearHead(Cell):
    """A linear layer from vectors to the logits."""

    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``classifier``."""
        module = nn.Sequential()
        module.add_module("classifier", nn.Linear(inputs, outputs))
        return module
