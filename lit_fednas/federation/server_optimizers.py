"""The server's step, and the adaptive optimizers of Reddi et al., Adaptive Federated Optimization (2021), Algorithm 2.

The pseudo-gradient (present weights minus the aggregate) replaces the gradient. The adaptive optimizers differ from
torch's: they correct no bias, add ``tau`` to the root, and start the second moment at tau^2.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, ShareBelowOne, checked

log = logging.getLogger(__name__)


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
        """Takes one server step: updates m, then v, then x <- x - lr m / (sqrt(v) + tau)."""
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
    """v <- v + delta^2. The paper sets ``beta1`` to 0."""

    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        v.add_(squared)


class FedYogi(_FedOptimizer):
    """v <- v - (1 - beta2) delta^2 sign(v - delta^2)."""

    def _second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> None:
        v.addcmul_(squared, torch.sign(v - squared), value=-(1 - beta2))


@torch.no_grad()
def set_pseudo_gradient(supernet: nn.Module, aggregate: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Sets parameters' gradients to (present - aggregate) and buffers to the aggregate; overwrites ``aggregate``."""
    parameters = dict(supernet.named_parameters())
    targets = [aggregate[name] for name in parameters]
    if is_plain_averaging(optimizer):  # the weights are set to the aggregate, without rounding by a step
        torch._foreach_copy_(list(parameters.values()), targets)
    else:
        for parameter, target in zip(parameters.values(), targets, strict=True):
            parameter.grad = torch.sub(parameter, target, out=target)
    for name, buffer in supernet.named_buffers():
        buffer.copy_(aggregate[name])


@contextmanager
@torch.no_grad()
def resting(supernet: nn.Module, untrained: Mapping[str, Tensor], optimizer: Optimizer) -> Iterator[None]:
    """Keeps values and optimizer state of untrained elements over a step, unless a callback has mixed in values.

    Otherwise momentum would move these elements on, and their second moment would decay. State that the first step
    creates is not changed. ``untrained`` has a mask of the elements that no client trained, by tensor.
    """
    saved = []
    for name, parameter in supernet.named_parameters():
        if name not in untrained or parameter.grad is None:
            continue
        mask = untrained[name] & (parameter.grad == 0)
        state = optimizer.state.get(parameter, {}).items()
        tensors = {key: tensor for key, tensor in state if torch.is_tensor(tensor) and tensor.shape == mask.shape}
        saved.append((parameter, mask, parameter[mask], {key: tensor[mask] for key, tensor in tensors.items()}))
    yield
    for parameter, mask, weights, values in saved:
        parameter[mask] = weights
        for key, value in values.items():
            optimizer.state[parameter][key][mask] = value


def is_plain_averaging(optimizer: Optimizer) -> bool:
    """Returns whether a step leads to the aggregate itself: true for SGD with lr 1 and no other option."""
    plain = {"lr": 1.0, "momentum": 0, "weight_decay": 0, "maximize": False}
    return type(optimizer) is torch.optim.SGD and all(
        all(group[name] == value for name, value in plain.items()) for group in optimizer.param_groups
    )


@torch.no_grad()
def check_step(supernet: nn.Module, optimizer: Optimizer, number: int) -> None:
    """Validates that the weights and their squares are finite after a round's step."""
    tensors = [tensor for tensor in (*supernet.parameters(), *supernet.buffers()) if tensor.is_floating_point()]
    if torch.stack(torch._foreach_norm(tensors)).sum().isfinite():
        return
    fault = f"made weights NaN, infinite or above 1e19 in round {number + 1}"
    if is_plain_averaging(optimizer):  # the weights are the aggregate itself
        raise ConfigError(f"model.aggregation: {fault}; correct how it merges the updates")
    raise ConfigError(f"model.server_optimizer: {type(optimizer).__name__} {fault}; lower its lr, or raise its eps")


def described(optimizer: Optimizer) -> dict[str, Any]:
    """Returns an optimizer's class and initial hyperparameters."""
    # torch adds ``differentiable`` when it restores an optimizer
    settings = {name: value for name, value in optimizer.defaults.items() if name != "differentiable"}
    return {"class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", "settings": settings}


def apply_changes(checkpoint: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Applies changed hyperparameters to a checkpoint's optimizer state; for another class, the state starts empty."""
    saved, present = checkpoint["federation"].get("server_optimizer"), described(optimizer)
    if saved is None:
        return  # checkpoints of version 0.2 have no record
    if saved["class"] != present["class"]:
        text = "model.server_optimizer: %s replaces the checkpoint's %s, and starts with an empty state"
        log.warning(text, *(settings["class"].rpartition(".")[2] for settings in (present, saved)))
        checkpoint["optimizer_states"][0] = optimizer.state_dict()
        return
    old, new = saved["settings"], present["settings"]
    changes = {name: value for name, value in new.items() if old.get(name) != value}
    for number, group in enumerate(checkpoint["optimizer_states"][0]["param_groups"]):
        if "lr" in changes and "initial_lr" in group:  # a scheduler scales initial_lr
            lr = group["lr"] * new["lr"] / old["lr"] if old["lr"] else new["lr"]
            changes |= {"lr": lr, "initial_lr": new["lr"]}
            for scheduler in checkpoint["lr_schedulers"]:
                scheduler["base_lrs"][number] = new["lr"]
        group.update(changes)
