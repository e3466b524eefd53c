"""FedProx' proximal term (Li et al., 2020)."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientTask
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.ranges import NonNegativeFloat, checked


@checked("objective")
class Proximal(WrappedObjective):
    """Adds ``mu / 2 * ||w - w_received||^2`` over the trained parameters (FedProx: Li et al., 2020).

    The term also pulls back parameters that a batch does not use, such as operators off its path. For the paper's
    partial work, set ``faults.straggler_rate``.

    Args:
        objective: The loss without the term.
        mu: The strength of the term; 0 disables it.

    Example:
        >>> from lit_fednas.messages import ClientTask
        >>> net, proximal = nn.Linear(1, 2, bias=False), Proximal(mu=0.5)
        >>> proximal.begin(net, ClientTask(0, 0, "whole", 1), torch.Generator())
        >>> with torch.no_grad():
        ...     _ = net.weight.add_(2.0)
        >>> loss = proximal.loss(net, torch.zeros(1, 1), torch.tensor([0]))  # log 2 + 0.5 / 2 * (4 + 4)
        >>> round(float(loss.detach()), 4)
        2.6931
    """

    def __init__(self, objective: Objective = TaskLoss(), mu: NonNegativeFloat = 0.01) -> None:
        super().__init__(objective)
        self.mu = mu

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        # all parameters, because the loss of an inner objective may freeze or thaw some
        self._parameters = list(network.parameters()) if self.mu else []
        self._received = [parameter.detach().clone() for parameter in self._parameters]
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.objective.loss(network, inputs, targets)
        pairs = zip(self._parameters, self._received, strict=True)
        trained = [(parameter, received) for parameter, received in pairs if parameter.requires_grad]
        if not trained:
            return loss
        parameters, received = zip(*trained, strict=True)
        return loss + self.mu / 2 * _SquaredDistance.apply(received, *parameters)

    @override
    def end(self, network: nn.Module) -> None:
        self._parameters, self._received = [], []
        super().end(network)


class _SquaredDistance(torch.autograd.Function):
    """Sum of squares of all differences; its gradient is 2 (w - w_received)."""

    # saves only the parameters, so that the backward pass takes a third of the time of autograd's
    @staticmethod
    def forward(ctx: Any, received: tuple[Tensor, ...], *parameters: Tensor) -> Tensor:
        ctx.received = received
        ctx.save_for_backward(*parameters)
        differences = torch._foreach_sub(parameters, received)
        return torch.stack(torch._foreach_norm(differences)).square().sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        differences = torch._foreach_sub(ctx.saved_tensors, ctx.received)
        torch._foreach_mul_(differences, 2 * gradient)
        return (None, *differences)
