"""Cells: what a growable network is a list of (FedTrans, section 3, "Cell", and section 4.1).

A cell builds its module for any numbers of units, and names the cell that deepening inserts behind it. How its
weights are carried over when it is widened follows (``lit_fednas.supernets.growing.growth``). So a new kind of
cell is one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import Sizes
from lit_fednas.supernets.layers import (
    Residual,
    basic_block,
    conv_layer,
    convolution,
    pooled_classifier,
    sequential,
)
from lit_fednas.supernets.norms import NoNorm, Norm


@dataclass(frozen=True)
class Cell(ABC):
    """A part of a growable network.

    A cell's output is either a *stream* of units of its own, or it keeps the units of the stream that it gets, as
    a residual block does whose input is added to its output. A stream goes through all cells that keep it, to the
    next that opens one.

    In every tensor of the module, output units lie in dimension 0 and input units in dimension 1; a unit's entries
    are adjacent. Nothing may mix a group's units in a way that copies of some of them would change (as a layer
    norm does), unless the group does not grow.

    Attributes:
        name: Its name; the cells of later models that come from it keep it.
        opens: Whether its output is a stream of its own.
        stream_grows: Whether the stream that it opens may be widened.
        growable: Whether it may be transformed at all.
        hidden: Its own groups of units besides the stream.
        silent: The submodules (norms and linear layers) whose weights and biases are zero in a freshly inserted
            cell, so that it passes its input on.
    """

    name: str

    opens: ClassVar[bool] = True
    stream_grows: ClassVar[bool] = True
    growable: ClassVar[bool] = True
    hidden: ClassVar[tuple[str, ...]] = ()
    silent: ClassVar[tuple[str, ...]] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Its groups of units: the hidden ones, and ``out`` for the stream that it opens."""
        return (*self.hidden, "out") if self.opens else self.hidden

    @abstractmethod
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        """Builds its module: from a stream of ``inputs`` units to ``outputs`` (the same if it keeps the stream)."""

    def follower(self, name: str) -> Cell | None:
        """Returns the cell that deepening inserts behind it; ``None`` if it cannot be deepened."""
        return replace(self, name=name) if self.growable and not self.opens else None

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """Returns the hidden units with which it is inserted into a stream of ``outputs`` units."""
        return dict.fromkeys(self.hidden, outputs)

    def scaled(self, scale: float) -> Self:
        """Returns it with its output divided by ``scale`` in training (HeteroFL); as it is where a norm undoes that."""
        return self

    def make_identity(self, module: nn.Module) -> None:
        """Sets the weights of a freshly inserted module so that it passes its input on, also in training mode."""
        for name in self.silent:
            for parameter in module.get_submodule(name).parameters(recurse=False):
                nn.init.zeros_(parameter)


def check_affine(norm: Norm | None, cell: str) -> None:
    """Raises ``ConfigError`` if the norm of a kind of cell has no scale that could be set to zero."""
    if norm is None or not norm.affine:
        raise ConfigError(
            f"supernet.family.norm: {norm} has no scale, and {cell} is inserted with a scale of zero; choose a "
            f"group norm, or a batch norm with affine: true"
        )


@dataclass(frozen=True)
class ConvCell(Cell):
    """Convolution, norm, ReLU (if ``relu``), and max pooling by ``pool`` (FedTrans, Fig. 4); a bias without norm.

    Its follower is a convolution of the same kernel, an identity at first, which goes through the ReLU, since its input
    is not negative; so a cell without ReLU cannot be deepened. With a norm that has a scale, the follower has it too
    and adds its input (:class:`ResidualConvCell`), as a norm cannot be the identity on every training batch, and
    networks without one train badly from scratch; else it has none.
    """

    kernel: int = 3
    stride: int = 1
    norm: Norm | None = None
    relu: bool = True
    pool: int = 0
    scale: float = 1.0

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        conv = convolution(inputs, outputs, self.kernel, self.stride, bias=self.norm is None)
        scale = None if self.scale == 1 else self.scale
        return conv_layer(conv, self.norm, nn.ReLU if self.relu else None, scale, self.pool)

    @override
    def scaled(self, scale: float) -> Self:
        return replace(self, scale=scale) if self.norm is None or isinstance(self.norm, NoNorm) else self

    @override
    def follower(self, name: str) -> Cell | None:
        if not self.relu:
            return None
        if self.norm is not None and self.norm.affine:
            return ResidualConvCell(name, self.norm, self.kernel)
        return ConvCell(name, self.kernel)

    @override
    @torch.no_grad()
    def make_identity(self, module: nn.Module) -> None:
        conv = module.get_submodule("conv")
        nn.init.dirac_(conv.get_parameter("weight"))
        conv.get_parameter("bias").zero_()


@dataclass(frozen=True)
class ResidualConvCell(Cell):
    """Convolution and norm; its input is added; ReLU. It keeps the stream, and its follower is one of its kind."""

    norm: Norm
    kernel: int = 3

    opens: ClassVar[bool] = False
    silent: ClassVar[tuple[str, ...]] = ("block.norm",)

    def __post_init__(self) -> None:
        check_affine(self.norm, type(self).__name__)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        block = sequential(conv=convolution(inputs, outputs, self.kernel), norm=self.norm(outputs))
        return Residual(block, activation=nn.ReLU(inplace=True))


@dataclass(frozen=True)
class EntryCell(Cell):
    """Convolution and norm, and an optional Hardswish.

    No convolution could be the identity behind it: the network's other convolutions have a norm or a Hardswish,
    and its output may be negative. So ``inserted``, a residual cell of the network's kind, is inserted behind it.
    """

    norm: Norm
    inserted: Cell
    kernel: int = 3
    stride: int = 1
    hardswish: bool = False

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        conv = convolution(inputs, outputs, self.kernel, self.stride)
        return conv_layer(conv, self.norm, nn.Hardswish if self.hardswish else None)

    @override
    def follower(self, name: str) -> Cell:
        return replace(self.inserted, name=name)


@dataclass(frozen=True)
class BlockCell(Cell):
    """A block of two convolutions whose input is added.

    With a projection it opens a stream. Without one it keeps the stream, and only ``hidden``, the channels between
    its convolutions, is its own. Whether it projects is a setting, as its widths may become equal when it grows.
    Its follower is a block without projection whose last norm has a scale of zero.
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
        """Whether there is a projection."""
        return self.projection

    @override
    def follower(self, name: str) -> Self:
        return type(self)(name, self.norm)


@dataclass(frozen=True)
class ResidualCell(BlockCell):
    """Convolution, norm, ReLU, convolution, norm; its input is added; ReLU (He et al., 2016, the basic block).

    FedTrans' "ResNet block" (section 3). With a projection, the shortcut is a 1x1 convolution and a norm. It must
    follow a cell whose output is not negative, so that the ReLU after the sum changes nothing.
    """

    silent: ClassVar[tuple[str, ...]] = ("block.norm2",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        shortcut = None
        if self.projection:
            shortcut = nn.Sequential(convolution(inputs, outputs, 1, self.stride), self.norm(outputs))
        return basic_block(inputs, hidden["hidden"], outputs, self.stride, self.norm, shortcut)


@dataclass(frozen=True)
class PreactivatedCell(BlockCell):
    """ReLU, convolution and norm, twice; its input is added.

    In networks of such cells, as in NAS-Bench-201's, streams are sums without a ReLU, so they may be negative, and only
    a residual cell is the identity on them. With a projection it is NAS-Bench-201's residual block between stages (Dong
    & Yang, 2020, section 2.1): the shortcut is an average pooling, if there is a stride, and a 1x1 convolution.
    """

    silent: ClassVar[tuple[str, ...]] = ("block.second.norm",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        block = sequential(
            first=relu_conv_norm(inputs, hidden["hidden"], 3, self.norm, self.stride),
            second=relu_conv_norm(hidden["hidden"], outputs, 3, self.norm),
        )
        shortcut = sequential(
            pool=nn.AvgPool2d(self.stride, ceil_mode=True) if self.stride != 1 else None,
            conv=convolution(inputs, outputs, 1) if self.projection else None,
        )
        return Residual(block, shortcut)


def relu_conv_norm(inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Sequential:
    """Returns ReLU, a convolution without bias that keeps height and width (but for its stride), and a norm."""
    return sequential(relu=nn.ReLU(), conv=convolution(inputs, outputs, kernel, stride), norm=norm(outputs))


class Head(Cell):
    """The last cell, which returns logits and is never transformed."""

    opens: ClassVar[bool] = False
    growable: ClassVar[bool] = False


@dataclass(frozen=True)
class PooledHead(Head):
    """A norm and ReLU (if a norm is given), the mean over an image's pixels, and a linear layer."""

    norm: Norm | None = None

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        before = {} if self.norm is None else {"norm": self.norm(inputs), "relu": nn.ReLU()}
        return sequential(**before, **pooled_classifier(inputs, outputs))
