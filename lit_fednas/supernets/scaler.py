"""HeteroFL's scaler."""

from __future__ import annotations

from torch import Tensor, nn

from lit_fednas.errors import ConfigError


class Scaler(nn.Module):
    """Divides by a subnet's width in training; does nothing in evaluation (HeteroFL: Diao et al., 2021).

    A layer that is cut to a share r of its units adds up fewer terms than the whole one, so that activations of
    narrow and wide clients would be of different size. It is what dropout does with its rate of 1 - r. Where a
    norm follows at once (as in HeteroFL's networks) it cancels out, but for the norm's epsilon.

    Args:
        scale: What to divide by, the subnet's width; 1 for nothing.

    Raises:
        ConfigError: The scale is not positive.

    Example:
        >>> import torch
        >>> Scaler(0.5)(torch.ones(2)), Scaler(0.5).eval()(torch.ones(2))
        (tensor([2., 2.]), tensor([1., 1.]))
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ConfigError(f"scale: {scale} must be above 0")
        self.scale = float(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Maps any shape to the same."""
        return x / self.scale if self.training and self.scale != 1 else x

    def extra_repr(self) -> str:
        """The scale."""
        return f"{self.scale:g}"
