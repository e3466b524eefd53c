"""The gradient function of one architecture, mapped over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from lit_fednas.errors import ConfigError
from lit_fednas.federation.fast.kernels import ImagesAsColumns, OwnDropout, compile_now
from lit_fednas.federation.settings import ClientSettings
from lit_fednas.objectives import Objective
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import Supernet

Batch = tuple[Tensor, Tensor]

ALONE = "set client.clients_per_fit to 1"


class StackedGradients:
    """The gradient function of an architecture, mapped over clients; a dry run shows whether that is possible."""

    def __init__(self, supernet: Supernet, arch: Any, objective: Objective, settings: ClientSettings) -> None:
        self._network = network = supernet.skeleton(arch)
        self.objective = objective
        self._with_loss = _NetworkWithLoss(network, objective)
        self._mapped = vmap(grad_and_value(self._loss), randomness="error")
        # whether it normalises over batches, which one example does not allow
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())
        self.start()
        weights, shape = supernet.views(arch), supernet.input_shape
        some = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        dtype = some.dtype if supernet.input_dtype.is_floating_point else supernet.input_dtype
        inputs = torch.zeros(2, *shape, dtype=dtype, device=some.device)
        batch = inputs, objective.data_task.example_targets(2, shape, some.device)
        self.trained = self._dry_run_of_one(weights, batch)
        self._has_dropout = self._dry_run_of_two(weights, batch, settings.clients_per_fit)
        self._compiled: Callable[..., tuple[dict[str, Tensor], Tensor]] | None = None
        self._to_compile = (settings.clients_per_fit, settings.batch_size) if settings.compile else ()
        if self._has_dropout and settings.compile:
            raise ConfigError(
                f"client.compile: true cannot compile dropout for {settings.clients_per_fit} clients in one fit; "
                f"set client.compile to false, or client.clients_per_fit to 1"
            )

    def start(self) -> None:
        """Puts the network, which evaluation shares, into training mode."""
        self._network.train()

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        draws: Sequence[torch.Generator],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Returns gradients ``[clients, ...]`` by name and losses ``[clients]`` of a batch of each client."""
        tensors = (parameters, others, inputs, targets)
        if inputs.shape[:2] == self._to_compile:
            return (self._compiled or self._compile(*tensors))(*tensors)
        if not self._has_dropout:
            return self._mapped(*tensors)
        with OwnDropout(draws):
            return self._mapped(*tensors)

    def _compile(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Any:
        compiled = torch.compile(self._mapped, dynamic=False)
        like: list[Any] = [{name: t.clone() for name, t in part.items()} for part in (parameters, others)]
        like += [torch.zeros_like(part) for part in batch]
        compile_now(lambda: compiled(*like), batch[0].device)
        self._compiled = compiled
        return compiled

    def _loss(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        named = {f"network.{name}": tensor for part in (parameters, others) for name, tensor in part.items()}
        with ImagesAsColumns():
            return functional_call(self._with_loss, named, batch)

    def _dry_run_of_one(self, weights: Mapping[str, Tensor], batch: Batch) -> tuple[str, ...]:
        """Returns the parameters that get a gradient; torch's optimizers skip the others."""
        names = [name for name, parameter in self._network.named_parameters() if parameter.requires_grad]
        parameters = {name: weights[name].detach().clone().requires_grad_() for name in names}
        others = {name: tensor.detach().clone() for name, tensor in weights.items() if name not in parameters}
        with torch.enable_grad(), isolated(0, "dry run", device=batch[0].device):
            loss = self._loss(parameters, others, *batch)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(names, gradients, strict=True) if gradient is not None)

    def _dry_run_of_two(self, weights: Mapping[str, Tensor], batch: Batch, clients_per_fit: int) -> bool:
        """Maps over two clients; returns whether there is dropout."""
        pairs = {name: torch.stack([tensor.detach()] * 2) for name, tensor in weights.items()}
        parameters = {name: pairs.pop(name) for name in self.trained}
        mode = OwnDropout([generator(0, "dry run", device=batch[0].device) for _ in range(2)])
        try:
            with mode:
                self._mapped(parameters, pairs, *(torch.stack([part] * 2) for part in batch))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if "random" in reason:
                what = f"the network draws random numbers by {mode.failed}, which cannot be stacked"
            else:
                what = f"the network or the objective cannot be stacked ({mode.failed or 'backward'}: {reason})"
            raise ConfigError(f"client.clients_per_fit: {clients_per_fit}: {what}; {ALONE}") from error
        return mode.used


class _NetworkWithLoss(nn.Module):
    """A network and its loss as one module, so that ``functional_call`` can replace the network's weights."""

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(self.network, inputs, targets)
