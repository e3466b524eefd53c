"""Gradients of architecture parameters: which loss they descend on (DARTS, MiLeNAS).

Liu et al. (2019, "DARTS: Differentiable Architecture Search", ICLR) state a bi-level problem: the architecture
parameters alpha minimise the loss on validation data of the weights w that are the best for alpha on training data.
He, Ye, Shen and Zhang (2020, "MiLeNAS: Efficient Neural Architecture Search via Mixed-Level Reformulation", CVPR)
let alpha descend on both losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.ranges import NonNegativeFloat, PositiveFloat, checked

#: Computes a loss with the present values of weights and architecture parameters.
Loss = Callable[[], Tensor]
_STEP = 0.01  # of the finite differences, as a norm


class ArchitectureGradient(ABC):
    """What the architecture parameters descend on."""

    @abstractmethod
    def gradients(
        self, train_loss: Loss, val_loss: Loss, weights: Sequence[Tensor], alphas: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Returns a gradient for each architecture parameter; all parameters keep their values.

        Args:
            train_loss: Of a batch of training data.
            val_loss: Of a batch of validation data.
            weights: The other parameters that are trained.
            alphas: The architecture parameters.
        """


class FirstOrder(ArchitectureGradient):
    """DARTS' first-order approximation: the validation loss of the present weights (section 2.3, xi = 0).

    Two forward passes per step, with the weights' own.
    """

    @override
    def gradients(
        self, train_loss: Loss, val_loss: Loss, weights: Sequence[Tensor], alphas: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        return torch.autograd.grad(val_loss(), alphas)


@checked("objective.gradient")
class SecondOrder(ArchitectureGradient):
    """DARTS' second-order approximation: the validation loss after one step on the training loss (Eq. 5 to 8).

    With w' = w - xi d/dw L_train(w, alpha) and g = d/dw' L_val(w', alpha), the gradient is

        d/dalpha L_val(w', alpha) - xi (d/dalpha L_train(w + e g, alpha) - d/dalpha L_train(w - e g, alpha)) / (2 e),

    where e is 0.01 over the norm of g. The step to w' is as the equation has it, without momentum and weight decay.
    Five forward passes per step, with the weights' own. Norms with running statistics count all of them.

    Args:
        lr: xi, the learning rate of the step. DARTS takes that of the weights; here it is a constant, which
            ``client.lr_schedule`` does not change.

    Raises:
        ConfigError: The learning rate is not positive.
    """

    def __init__(self, lr: PositiveFloat = 0.025) -> None:
        self.lr = lr

    @override
    def gradients(
        self, train_loss: Loss, val_loss: Loss, weights: Sequence[Tensor], alphas: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        # the finite difference is smaller than what half precision resolves
        with torch.autocast(weights[0].device.type, enabled=False):
            values = [weight.detach().clone() for weight in weights]
            try:
                _move(weights, values, torch.autograd.grad(train_loss(), weights), -self.lr)
                both = torch.autograd.grad(val_loss(), (*alphas, *weights))
                direct, along = both[: len(alphas)], both[len(alphas) :]
                step = _STEP / float(torch.stack(torch._foreach_norm(along)).norm().clamp(min=1e-12))
                _move(weights, values, along, step)
                above = torch.autograd.grad(train_loss(), alphas)
                _move(weights, values, along, -step)
                below = torch.autograd.grad(train_loss(), alphas)
            finally:
                _move(weights, values, values, 0.0)
        factor = self.lr / (2 * step)
        return [one - factor * (up - down) for one, up, down in zip(direct, above, below, strict=True)]


@checked("objective.gradient")
class MixedLevel(ArchitectureGradient):
    """MiLeNAS' mixed level (He et al., 2020): the training loss plus the validation loss, as FedNAS' clients search.

    Three forward passes per step, with the weights' own.

    Args:
        weight: lambda, the weight of the validation loss.

    Raises:
        ConfigError: The weight is negative.
    """

    def __init__(self, weight: NonNegativeFloat = 1.0) -> None:
        self.weight = weight

    @override
    def gradients(
        self, train_loss: Loss, val_loss: Loss, weights: Sequence[Tensor], alphas: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        return torch.autograd.grad(train_loss() + self.weight * val_loss(), alphas)


@torch.no_grad()
def _move(weights: Sequence[Tensor], values: Sequence[Tensor], along: Sequence[Tensor], step: float) -> None:
    """Sets weights to ``values + step * along``."""
    for weight, value, direction in zip(weights, values, along, strict=True):
        weight.copy_(value if step == 0 else value + step * direction)
