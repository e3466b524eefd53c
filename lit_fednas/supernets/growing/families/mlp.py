"""A multilayer perceptron as an initial model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, LinearCell, LinearHead
from lit_fednas.supernets.width_families import check_positive


@dataclass(frozen=True)
class GrowableMLP(GrowableFamily):
    """Linear layers with ReLU, and a linear classifier; inputs of any shape are flattened.

    The cells are ``linear1``, ``linear2``, ... and ``head``.

    Args:
        hidden: Units per hidden layer.

    Raises:
        ConfigError: There is no hidden layer, or a number is not positive.

    Example:
        >>> str(GrowableMLP([16, 8]).blueprint((1, 8, 8), 10))
        'linear1 16, linear2 8, head'
    """

    hidden: Sequence[int] = (64,)

    def __post_init__(self) -> None:
        check_positive(self, hidden=self.hidden)

    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """As many linear layers as there are widths."""
        if not input_shape or min(input_shape) < 1:
            raise ConfigError(f"supernet.input_shape: {list(input_shape)} must be numbers of at least 1")
        area = prod(input_shape[1:]) if len(input_shape) > 1 else None
        cells: list[Cell] = []
        sizes = {}
        for place, units in enumerate(self.hidden, start=1):
            cells.append(LinearCell(f"linear{place}", area if place == 1 else None))
            sizes[f"linear{place}.out"] = units
        cells.append(LinearHead("head"))
        return Blueprint(tuple(cells), sizes, input_shape[0], num_classes, self.multiple)
