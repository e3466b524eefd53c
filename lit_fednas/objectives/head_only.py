"""Training of the classifier alone, the first step of FedorAS' transfer to other labels (App. H)."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import TaskLoss
from lit_fednas.objectives.wrapped import WrappedObjective


class HeadOnly(WrappedObjective):
    """Trains one module; the others get no gradients, and their norms run as in evaluation.

    Args:
        objective: The loss.
        head: The module's name in the network's ``named_modules``.

    Example:
        >>> import torch
        >>> from collections import OrderedDict
        >>> net = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), heads=nn.Linear(2, 2)))
        >>> HeadOnly().loss(net, torch.zeros(1, 2), torch.tensor([0])).backward()
        >>> net.body.weight.grad is None, net.heads.weight.grad is None
        (True, False)
    """

    def __init__(self, objective: Objective = TaskLoss(), head: str = "heads") -> None:
        super().__init__(objective)
        self.head = head

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Freezes the rest (the whole network is in training mode when a fit begins), then computes the loss."""
        for name, module in network.named_modules():
            if not self._trains(name):
                module.training = False
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(self._trains(name))
        return self.objective.loss(network, inputs, targets)

    def _trains(self, name: str) -> bool:
        return name == self.head or name.startswith(f"{self.head}.")
