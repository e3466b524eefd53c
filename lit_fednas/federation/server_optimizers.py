"""The server's step, and the adaptive optimizers of Reddi et al., Adaptive Federated Optimization (2021), Algorithm 2.

The pseudo-gradient (present weights minus the aggregate) replaces the gradient. The adaptive ones differ from their
namesakes in torch: no bias correction, ``tau`` added to the root, and a second moment that starts at tau^2.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fednas.ranges import PositiveFloat, ShareBelowOne, checked


@checked("server_optimizer")
class _FedOptimizer(Optimizer):
    """Algorithm 2 without its line on the second moment v."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: PositiveFloat = 0.01,
        beta1: ShareBelowOne = 0.9,
        beta2: ShareBelowOne = 0.99,
        tau: PositiveFloat = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one server step: m, then v, then x <- x - lr m / (sqrt(v) + tau) for the pseudo-gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["m"] = torch.zeros_like(parameter)
                    state["v"] = torch.full_like(parameter, group["tau"] ** 2)
                state["m"].lerp_(parameter.grad, 1 - group["beta1"])
                self._second_moment(state["v"], parameter.grad.square(), group["beta2"])
                parameter.addcdiv_(state["m"], state["v"].sqrt().add_(group["tau"]), value=-group["lr"])
        return loss

    @abstractmethod
    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        """Updates v in place from the squared pseudo-gradient."""


class FedAdam(_FedOptimizer):
    """v <- beta2 v + (1 - beta2) delta^2."""

    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        v.lerp_(squared, 1 - beta2)


class FedAdagrad(_FedOptimizer):
    """v <- v + delta^2. The paper runs it with ``beta1`` 0."""

    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        v.add_(squared)


class FedYogi(_FedOptimizer):
    """v <- v - (1 - beta2) delta^2 sign(v - delta^2)."""

    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        v.addcmul_(squared, torch.sign(v - squared), value=-(1 - beta2))


@torch.no_grad()
def set_pseudo_gradient(supernet: nn.Module, aggregate: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Sets (present - aggregate) as the parameters' gradient, and buffers to the aggregate, which is overwritten."""
    parameters = dict(supernet.named_parameters())
    targets = [aggregate[name] for name in parameters]
    if is_plain_averaging(optimizer):  # no gradient is needed: exactly the aggregate itself
        torch._foreach_copy_(list(parameters.values()), targets)
    else:
        for parameter, target in zip(parameters.values(), targets, strict=True):
            parameter.grad = torch.sub(parameter, target, out=target)
    for name, buffer in supernet.named_buffers():
        buffer.copy_(aggregate[name])


def is_plain_averaging(optimizer: Optimizer) -> bool:
    """Returns whether a step along the pseudo-gradient leads to the aggregate itself: SGD with lr 1 alone."""
    plain = {"lr": 1.0, "momentum": 0, "weight_decay": 0, "maximize": False}
    return type(optimizer) is torch.optim.SGD and all(
        all(group[name] == value for name, value in plain.items()) for group in optimizer.param_groups
    )
