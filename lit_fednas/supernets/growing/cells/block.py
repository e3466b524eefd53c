"""What cells that add a block of two convolutions to their input have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.silence import check_affine, silence
from lit_fednas.supernets.norms import Norm


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
