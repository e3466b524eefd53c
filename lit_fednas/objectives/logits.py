"""A network's logits in its place, where several losses are taken of one pass."""

from __future__ import annotations

from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.wrapped import WrappedObjective


class KnownLogits(nn.Module):
    """Says what a network has said already, whatever it is asked.

    Args:
        logits: ``[batch, num_classes]``.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self._logits = logits

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self._logits


def check_sees_logits_alone(outer: Objective, inner: Objective) -> None:
    """Refuses an objective inside that looks at a network's weights, as a proximal term does.

    Args:
        outer: Hands logits to the one inside, by :class:`KnownLogits`.
        inner: The one inside.

    Raises:
        ConfigError: The one inside wraps another itself.
    """
    if isinstance(inner, WrappedObjective):
        name, around = type(inner).__name__, type(outer).__name__
        raise ConfigError(
            f"model.objective.objective: {name} wants a network, and {around} has logits for it; put {around} "
            f"inside of {name}"
        )
