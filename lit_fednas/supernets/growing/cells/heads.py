"""The last cell of a growable network: from its last stream to the logits. It is never transformed itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from lit_fednas.supernets.growing.cells.base import Cell


@dataclass(frozen=True)
class PooledHead(Cell):
    """The mean over an image's places, and a linear layer."""

    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``pool``, ``flatten`` and ``classifier``."""
        module = nn.Sequential()
        module.add_module("pool", nn.AdaptiveAvgPool2d(1))
        module.add_module("flatten", nn.Flatten())
        module.add_module("classifier", nn.Linear(inputs, outputs))
        return module
