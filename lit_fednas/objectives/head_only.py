"""Training of the classifier alone: the first step of FedorAS' transfer to other labels (App. H)."""

from __future__ import annotations

from torch import Tensor, nn

from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.wrapped import WrappedObjective


class HeadOnly(WrappedObjective):
    """Freezes all but the modules of one name: no gradients, and norms as in evaluation.

    Args:
        objective: The loss.
        head: The name of what is trained, as the network's ``named_modules`` has it.

    Example:
        >>> import torch
        >>> from collections import OrderedDict
        >>> net = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), heads=nn.Linear(2, 2)))
        >>> HeadOnly().loss(net, torch.zeros(1, 2), torch.tensor([0])).backward()
        >>> net.body.weight.grad is None, net.heads.weight.grad is None
        (True, False)
    """

    def __init__(self, objective: Objective = CrossEntropy(), head: str = "heads") -> None:
        super().__init__(objective)
        self.head = head

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Freezes (whoever trains has put the whole network into training mode), then the loss."""
        for name, module in network.named_modules():
            if not self._trains(name):
                module.training = False
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(self._trains(name))
        return self.objective.loss(network, inputs, targets)

    def _trains(self, name: str) -> bool:
        return name == self.head or name.startswith(f"{self.head}.")
