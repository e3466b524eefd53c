"""The plain supervised loss."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.objectives.base import Objective


class CrossEntropy(Objective):
    """Cross-entropy of the network's logits: the plain supervised loss.

    Args:
        label_smoothing: As in ``torch.nn.functional.cross_entropy``.

    Example:
        >>> import torch
        >>> float(CrossEntropy().loss(nn.Identity(), torch.zeros(1, 4), torch.tensor([2])))  # log 4
        1.3862943649291992
    """

    stackable = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(network(inputs), targets, label_smoothing=self.label_smoothing)
