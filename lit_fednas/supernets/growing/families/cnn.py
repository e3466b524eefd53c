"""A plain convolutional network as an initial model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, ConvCell, PooledHead
from lit_fednas.supernets.norms import GroupNorm, Norm
from lit_fednas.supernets.width_families import norm_multiple

_NORM = GroupNorm(4)


@dataclass(frozen=True)
class GrowableCNN(GrowableFamily):
    """3x3 convolutions with norm and ReLU, each but the last followed by 2x2 max pooling, and a pooled head.

    The cells are ``conv1``, ``conv2``, ... and ``head``.

    Args:
        hidden: Channels per convolution.
        norm: Normalisation layer, ``None`` for none.

    Raises:
        ConfigError: There is no convolution, or a number is not positive.

    Example:
        >>> str(GrowableCNN([8, 16]).blueprint((3, 8, 8), 10))
        'conv1 8, conv2 16, head'
    """

    hidden: Sequence[int] = (16, 32, 64)
    norm: Norm | None = _NORM

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"supernet.family.hidden: {list(self.hidden)} must be numbers of at least 1")

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """As many convolutions as there are widths."""
        pools = len(self.hidden) - 1
        if len(input_shape) != 3 or min(input_shape[1:]) < 2**pools:
            raise ConfigError(
                f"supernet.input_shape: {list(input_shape)} must be channels, height and width, of at least "
                f"{2**pools} pixels for {len(self.hidden)} convolutions"
            )
        cells: list[Cell] = []
        sizes = {}
        for place, channels in enumerate(self.hidden):
            name = f"conv{place + 1}"
            cells.append(ConvCell(name, norm=self.norm, pool=2 if place < pools else 0))
            sizes[f"{name}.out"] = channels
        cells.append(PooledHead("head"))
        return Blueprint(tuple(cells), sizes, input_shape[0], num_classes, self.multiple)
