"""Cells: the parts of a growable network (FedTrans, section 3, "Cell", and section 4.1).

A new kind of cell is one class that builds its module; ``growth`` derives the transfer of weights when it is widened.
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
    """A part of a growable network. It opens a new stream of units, or keeps its input stream like a residual block."""

    # In all tensors of the module, dimension 0 has output units and dimension 1 input units; a unit's entries are
    # adjacent. A group may grow only if copies of some units have no effect on its other units.
    name: str  # descendants in later models keep the name

    opens: ClassVar[bool] = True
    growable: ClassVar[bool] = True  # whether it may be transformed
    hidden: ClassVar[tuple[str, ...]] = ()  # groups of units inside the cell
    #: A new cell is the identity: these submodules start with zero weights and biases, and this layer as identity.
    silent: ClassVar[tuple[str, ...]] = ()
    identity: ClassVar[str] = ""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of units: the hidden ones, and ``out`` for the stream that the cell opens."""
        return (*self.hidden, "out") if self.opens else self.hidden

    @abstractmethod
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        """Builds the module, from a stream of ``inputs`` units to ``outputs``; scalers divide by ``scale``."""

    def follower(self, name: str) -> Cell | None:
        """Returns the cell that deepening inserts after this one; ``None`` if it cannot be deepened."""
        return replace(self, name=name) if self.growable and not self.opens else None

    def fresh_sizes(self, outputs: int) -> dict[str, int]:
        """Returns the units of each group if the cell is inserted into a stream of ``outputs`` units."""
        return dict.fromkeys(self.groups, outputs)

    def make_identity(self, module: nn.Module) -> None:
        """Sets the weights of a new cell's module so that it returns its input, also in training mode."""
        for name in self.silent:
            for parameter in module.get_submodule(name).parameters(recurse=False):
                nn.init.zeros_(parameter)
        if self.identity:
            weight = module.get_parameter(f"{self.identity}.weight")
            (nn.init.eye_ if weight.dim() == 2 else nn.init.dirac_)(weight)
            nn.init.zeros_(module.get_parameter(f"{self.identity}.bias"))


@dataclass(frozen=True)
class NormedCell(Cell):
    """A cell with norms as silent submodules; the norms must have a scale."""

    norm: Norm

    def __post_init__(self) -> None:
        if self.norm is None or not self.norm.affine:
            raise ConfigError(f"supernet.family.norm: {self.norm} has no scale; choose a group norm, or affine: true")


@dataclass(frozen=True)
class ConvCell(Cell):
    """Convolution (with a bias if there is no norm), norm, activation and max pooling (FedTrans, Fig. 4)."""

    kernel: int = 3
    stride: int = 1
    norm: Norm | None = None
    activation: type[nn.Module] | None = nn.ReLU
    pool: int = 0
    inserted: Cell | None = None  # follower, if not the default one

    identity: ClassVar[str] = "conv"

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        conv = convolution(inputs, outputs, self.kernel, self.stride, bias=self.norm is None)
        is_scaled = scale != 1 and self.norm is None  # a norm would undo the scale
        return conv_layer(conv, self.norm, self.activation, scale if is_scaled else None, self.pool)

    @override
    def follower(self, name: str) -> Cell | None:
        if self.inserted is not None:
            return replace(self.inserted, name=name)
        if self.activation is not nn.ReLU:
            return None
        if self.norm is not None and self.norm.affine:
            # A norm is not the identity on every batch, but networks without norms train badly from scratch.
            return ResidualConvCell(name, self.norm, self.kernel)
        return ConvCell(name, self.kernel)  # starts as identity: the ReLU keeps its nonnegative input


@dataclass(frozen=True)
class ResidualConvCell(NormedCell):
    """Convolution and norm with a residual connection, then ReLU; it keeps the stream."""

    kernel: int = 3

    opens: ClassVar[bool] = False
    silent: ClassVar[tuple[str, ...]] = ("block.norm",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        block = sequential(conv=convolution(inputs, outputs, self.kernel), norm=self.norm(outputs))
        return Residual(block, activation=nn.ReLU(inplace=True))


@dataclass(frozen=True)
class BlockCell(NormedCell):
    """Two convolutions with ``hidden`` channels between them and a residual connection, projected if it ``opens``."""

    # a field, because growth may make the widths equal
    opens: bool = field(default=False, kw_only=True)  # type: ignore[misc]
    stride: int = 1

    hidden: ClassVar[tuple[str, ...]] = ("hidden",)

    @override
    def follower(self, name: str) -> Self:
        return replace(self, name=name, opens=False, stride=1)


@dataclass(frozen=True)
class ResidualCell(BlockCell):
    """The basic block of He et al. (2016), FedTrans' "ResNet block" (section 3)."""

    # The previous cell's output is nonnegative, so the ReLU after the sum has no effect.
    silent: ClassVar[tuple[str, ...]] = ("block.norm2",)

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        shortcut = None
        if self.opens:
            shortcut = nn.Sequential(convolution(inputs, outputs, 1, self.stride), self.norm(outputs))
        return basic_block(inputs, hidden["hidden"], outputs, self.stride, self.norm, shortcut)


@dataclass(frozen=True)
class PreactivatedCell(BlockCell):
    """ReLU, convolution and norm, twice; projected, it is NAS-Bench-201's block between stages (section 2.1)."""

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
    """A linear layer and a ReLU."""

    entries: int = 0  # entries of an example; the first cell flattens examples

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
    """The last cell; it returns logits and is never transformed."""

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
    """An optional norm with ReLU, the mean over an image's pixels, and a linear layer."""

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
