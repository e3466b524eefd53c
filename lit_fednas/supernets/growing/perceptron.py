"""A perceptron as an initial model, and its cell: a fully connected layer (FedTrans, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_filled
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, Head
from lit_fednas.supernets.layers import Scaler, sequential


@dataclass(frozen=True)
class LinearCell(Cell):
    """A linear layer and a ReLU; the first one flattens an example of so many ``entries``.

    Its follower is one of its kind, an identity at first, as its input is not negative.
    """

    entries: int = 0
    scale: float = 1.0

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return sequential(
            flatten=nn.Flatten() if self.entries else None,
            linear=nn.Linear(self.entries or inputs, outputs),
            scaler=Scaler(self.scale) if self.scale != 1 else None,
            activation=nn.ReLU(inplace=True),
        )

    @override
    def follower(self, name: str) -> LinearCell:
        return LinearCell(name)

    @override
    @torch.no_grad()
    def make_identity(self, module: nn.Module) -> None:
        linear = module.get_submodule("linear")
        nn.init.eye_(linear.get_parameter("weight"))
        linear.get_parameter("bias").zero_()

    @override
    def scaled(self, scale: float) -> Self:
        return replace(self, scale=scale)


@dataclass(frozen=True)
class LinearHead(Head):
    """A linear layer."""

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return nn.Linear(inputs, outputs)


@checked("supernet.family")
@dataclass(frozen=True)
class GrowablePerceptron(GrowableFamily):
    """Linear layers with ReLU on the flattened input, and a linear head: the fastest network to try growing with.

    The cells are ``layer1``, ``layer2``, ... and ``head``.

    Args:
        hidden: Units per layer.

    Raises:
        ConfigError: No layer is given, or a number is not positive.

    Example:
        >>> str(GrowablePerceptron([4]).blueprint((1, 8, 8), 10))
        'layer1 4, head'
    """

    hidden: Sequence[PositiveInt] = (16,)

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden)

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        cells: list[tuple[Cell, Sizes]] = [
            (LinearCell(f"layer{number}", entries=0 if number > 1 else prod(input_shape)), {"out": units})
            for number, units in enumerate(self.hidden, start=1)
        ]
        return self.assembled([*cells, (LinearHead("head"), {})], input_shape, num_classes)
