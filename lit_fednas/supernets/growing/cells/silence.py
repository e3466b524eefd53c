"""How a residual cell is made the identity: what is added to its input is made zero."""

from __future__ import annotations

from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.norms import BatchNorm, Norm


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
