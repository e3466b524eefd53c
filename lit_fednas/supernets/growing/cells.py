"""Cells: what a growable network is a list of (FedTrans, section 3, "Cell", and section 4.1).

A cell says how its module is built for any numbers of units, and which cell deepening puts behind it. How its
weights are carried over when it is widened is found from that (``lit_fednas.supernets.growing.growth``). So a new
kind of cell is one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.elastic_resnet import ResidualBlock
from lit_fednas.supernets.norms import BatchNorm, Norm


@dataclass(frozen=True)
class Cell(ABC):
    """A place in a growable network.

    A cell's output is either a *stream* of units of its own, or it keeps the units of the stream that it gets, as
    a residual block does whose input is added to its output. A stream goes through all cells that keep it, to the
    next that opens one.

    In every tensor of the module, the units that are put out lie in dimension 0 and those that are taken in lie in
    dimension 1; a unit's entries are adjacent. Nothing may mix a group's units in a way that copies of some of
    them would change (as a layer norm does), unless the group does not grow.

    Args:
        name: Its name; the cells of later models that come from it keep it.

    Attributes:
        opens: Whether its output is a stream of its own.
        stream_grows: Whether the stream that it opens may be widened.
        growable: Whether it may be transformed at all.
        hidden: Its own groups of units besides the stream.
    """

    name: str

    opens: ClassVar[bool] = True
    stream_grows: ClassVar[bool] = True
    growable: ClassVar[bool] = True
    hidden: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds its module.

        Args:
            inputs: Units of the stream that it gets.
            outputs: Units of the stream that it puts out; ``inputs`` where it keeps it.
            hidden: Units of its hidden groups.
        """

    def follower(self, name: str) -> Cell | None:
        """The cell that deepening inserts behind it; ``None`` if it cannot be deepened."""
        return None

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """With how many hidden units it starts when it is inserted into a stream of so many units."""
        return {}

    def make_identity(self, module: nn.Module) -> None:
        """Sets the weights of a freshly built follower such that it passes on what it gets.

        In training mode, too: so no norm may stand in the way, whose answer depends on the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} is no cell that is inserted")


def check_affine(norm: Norm | None, cell: str) -> None:
    """Raises ``ConfigError`` if a norm has no scale that could be set to zero.

    Args:
        norm: What the norms of a cell are made by.
        cell: Its kind, for the error.
    """
    if norm is None or (isinstance(norm, BatchNorm) and not norm.affine):
        raise ConfigError(
            f"supernet.family.norm: {norm} has no scale, and {cell} is inserted with a scale of zero; choose a "
            f"group norm, or a batch norm with affine: true"
        )


def silence(layer: nn.Module) -> None:
    """Sets a layer's weight and bias to zero, in place: on every batch its answer is zero.

    Args:
        layer: A norm with scale and shift, or a linear layer.
    """
    for parameter in layer.parameters(recurse=False):
        nn.init.zeros_(parameter)


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


@dataclass(frozen=True)
class BlockCell(Cell):
    """A block whose input is added.

    With a projection it opens a stream. Without one it keeps the stream, and only ``hidden``, the channels between
    its convolutions, is its own. Its follower is a block without projection whose last norm has a scale of zero.

    Args:
        name: Its name.
        norm: Normalisation layer, with a scale.
        projection: Whether a convolution stands in the shortcut.
        stride: Of the block and of the shortcut.

    Attributes:
        last_norm: The name of the last norm in its module.

    Raises:
        ConfigError: The norm has no scale, or there is a stride and no projection.
    """

    norm: Norm
    projection: bool = False
    stride: int = 1

    hidden: ClassVar[tuple[str, ...]] = ("hidden",)
    last_norm: ClassVar[str]

    def __post_init__(self) -> None:
        check_affine(self.norm, type(self).__name__)
        if self.stride != 1 and not self.projection:
            raise ConfigError(f"supernet.family: cell {self.name} has stride {self.stride} and needs a projection")

    @property
    def opens(self) -> bool:  # type: ignore[override]
        """With a projection."""
        return self.projection

    def follower(self, name: str) -> Self:
        """A block that keeps the stream."""
        return type(self)(name, self.norm)

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """As many channels inside as outside."""
        return {"hidden": outputs}

    def make_identity(self, module: nn.Module) -> None:
        """Nothing is added to its input."""
        silence(module.get_submodule(self.last_norm))


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
        return _BasicBlock(inputs, hidden["hidden"], outputs, self.stride, self.norm, self.projection)


class _BasicBlock(ResidualBlock):
    """Whether it projects is said, and not seen from its widths, which may come to be equal as it grows."""

    def __init__(self, inputs: int, middle: int, out: int, stride: int, norm: Norm, projection: bool) -> None:
        super().__init__(inputs, middle, out, stride, norm)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, out, 1, stride=stride, bias=False), norm(out))
            if projection
            else nn.Identity()
        )


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
