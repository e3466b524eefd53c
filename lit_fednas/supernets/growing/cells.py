"""Cells: what a growable network is a list of (FedTrans, section 3, "Cell", and section 4.1).

A new kind is one class that builds its module; how weights are carried over when it is widened follows (``growth``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import Sizes
from lit_fednas.supernets.layers import (
    Norm,
    Residual,
    Scaler,
    TokenMean,
    basic_block,
    conv_layer,
    convolution,
    pooled_classifier,
    relu_conv_norm,
    sequential,
)


@dataclass(frozen=True)
class Cell(ABC):
    """A part of a growable network that opens a stream of units or keeps the one that it gets, as a residual block."""

    # In every tensor of its module, output units lie in dimension 0 and input units in dimension 1; a unit's entries
    # are adjacent. A group grows only if copies of some of its units change nothing for the others.
    name: str  # the cells of later models that come from it keep it

    opens: ClassVar[bool] = True
    growable: ClassVar[bool] = True  # whether it may be transformed at all
    hidden: ClassVar[tuple[str, ...]] = ()  # its groups of units besides the stream
    #: In a freshly inserted cell, which passes its input on: the submodules whose weights and biases are zero, and the
    #: layer that is the identity.
    silent: ClassVar[tuple[str, ...]] = ()
    identity: ClassVar[str] = ""

    @property
    def groups(self) -> tuple[str, ...]:
        """Its groups of units: the hidden ones, and ``out`` for the stream that it opens."""
        return (*self.hidden, "out") if self.opens else self.hidden

    @abstractmethod
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        """Builds its module, from a stream of ``inputs`` units to ``outputs``; its scalers divide by ``scale``."""

    def follower(self, name: str) -> Cell | None:
        """Returns the cell that deepening inserts behind it; ``None`` if it cannot be deepened."""
        return replace(self, name=name) if self.growable and not self.opens else None

    def fresh_sizes(self, outputs: int) -> dict[str, int]:
        """Returns the units of its groups when it is inserted into a stream of ``outputs`` units."""
        return dict.fromkeys(self.groups, outputs)

    def make_identity(self, module: nn.Module) -> None:
        """Sets the weights of a freshly inserted module so that it passes its input on, also in training mode."""
        for name in self.silent:
            for parameter in module.get_submodule(name).parameters(recurse=False):
                nn.init.zeros_(parameter)
        if self.identity:
            weight = module.get_parameter(f"{self.identity}.weight")
            (nn.init.eye_ if weight.dim() == 2 else nn.init.dirac_)(weight)
            nn.init.zeros_(module.get_parameter(f"{self.identity}.bias"))


@dataclass(frozen=True)
class NormedCell(Cell):
    """A cell whose silent submodules are norms, which therefore have a scale."""

    norm: Norm

    def __post_init__(self) -> None:
        if self.norm is None or not self.norm.affine:
            raise ConfigError(
                f"supernet.family.norm: {self.norm} has no scale, and {type(self).__name__} is inserted with a scale "
                f"of zero; choose a group norm, or a batch norm with affine: true"
            )


@dataclass(frozen=True)
class ConvCell(Cell):
    """Convolution, norm, activation, and max pooling by ``pool`` (FedTrans, Fig. 4); a bias without norm."""

    kernel: int = 3
    stride: int = 1
    norm: Norm | None = None
    activation: type[nn.Module] | None = nn.ReLU
    pool: int = 0
    inserted: Cell | None = None  # its follower

    identity: ClassVar[str] = "conv"

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        conv = convolution(inputs, outputs, self.kernel, self.stride, bias=self.norm is None)
        is_scaled = scale != 1 and self.norm is None  # else the norm undoes it
        return conv_layer(conv, self.norm, self.activation, scale if is_scaled else None, self.pool)

    @override
    def follower(self, name: str) -> Cell | None:
        if self.inserted is not None:
            return replace(self.inserted, name=name)
        if self.activation is not nn.ReLU:
            return None
        if self.norm is not None and self.norm.affine:
            # a norm cannot be the identity on every batch, and networks without one train badly from scratch
            return ResidualConvCell(name, self.norm, self.kernel)
        return ConvCell(name, self.kernel)  # the identity at first: its input is not negative, so it passes the ReLU


@dataclass(frozen=True)
class ResidualConvCell(NormedCell):
    """Convolution and norm; its input is added; ReLU. It keeps the stream."""

    kernel: int = 3

    opens: ClassVar[bool] = False
    silent: ClassVar[tuple[str, ...]] = ("block.norm",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        block = sequential(conv=convolution(inputs, outputs, self.kernel), norm=self.norm(outputs))
        return Residual(block, activation=nn.ReLU(inplace=True))


@dataclass(frozen=True)
class BlockCell(NormedCell):
    """Two convolutions, with ``hidden`` channels between them, whose input is added; projected if it opens a stream."""

    # a setting, as widths may become equal when it grows
    opens: bool = field(default=False, kw_only=True)  # type: ignore[misc]
    stride: int = 1

    hidden: ClassVar[tuple[str, ...]] = ("hidden",)

    @override
    def follower(self, name: str) -> Self:
        return replace(self, name=name, opens=False, stride=1)


@dataclass(frozen=True)
class ResidualCell(BlockCell):
    """The basic block of He et al. (2016), FedTrans' "ResNet block" (section 3)."""

    # follows a cell whose output is not negative, so that the ReLU after the sum changes nothing
    silent: ClassVar[tuple[str, ...]] = ("block.norm2",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        shortcut = None
        if self.opens:
            shortcut = nn.Sequential(convolution(inputs, outputs, 1, self.stride), self.norm(outputs))
        return basic_block(inputs, hidden["hidden"], outputs, self.stride, self.norm, shortcut)


@dataclass(frozen=True)
class PreactivatedCell(BlockCell):
    """ReLU, convolution and norm, twice: if projected, NAS-Bench-201's block between stages (section 2.1)."""

    last_kernel: int = 3

    silent: ClassVar[tuple[str, ...]] = ("block.second.norm",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        block = sequential(
            first=relu_conv_norm(inputs, hidden["hidden"], self.norm, 3, self.stride),
            second=relu_conv_norm(hidden["hidden"], outputs, self.norm, self.last_kernel),
        )
        shortcut = sequential(
            pool=nn.AvgPool2d(self.stride, ceil_mode=True) if self.stride != 1 else None,
            conv=convolution(inputs, outputs, 1) if self.opens else None,
        )
        return Residual(block, shortcut)


@dataclass(frozen=True)
class LinearCell(Cell):
    """A linear layer and a ReLU; the first one flattens an example of so many ``entries``."""

    entries: int = 0

    identity: ClassVar[str] = "linear"

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return sequential(
            flatten=nn.Flatten() if self.entries else None,
            linear=nn.Linear(self.entries or inputs, outputs),
            scaler=Scaler(scale) if scale != 1 else None,
            activation=nn.ReLU(inplace=True),
        )

    @override
    def follower(self, name: str) -> LinearCell:
        return LinearCell(name)


class Head(Cell):
    """The last cell, which returns logits and is never transformed."""

    opens: ClassVar[bool] = False
    growable: ClassVar[bool] = False


@dataclass(frozen=True)
class LinearHead(Head):
    """A linear layer."""

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return nn.Linear(inputs, outputs)


@dataclass(frozen=True)
class PooledHead(Head):
    """A norm and ReLU (if a norm is given), the mean over an image's pixels, and a linear layer."""

    norm: Norm | None = None

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        first = {} if self.norm is None else {"norm": self.norm(inputs), "relu": nn.ReLU()}
        return sequential(**first, **pooled_classifier(inputs, outputs))


@dataclass(frozen=True)
class TokenHead(Head):
    """Layer norm, the mean over tokens, and a linear layer."""

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        return sequential(norm=nn.LayerNorm(inputs), pool=TokenMean(), classifier=nn.Linear(inputs, outputs))
