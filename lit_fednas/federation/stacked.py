"""Fits of several clients of one architecture: each operation starts once for all, which is faster if it is small.

The clients' weights are stacked in tensors ``[clients, ...]``, ``torch.func`` maps the gradient function over them, and
an ordinary optimizer steps them all. Up to the order of float sums each client trains as if it were alone: on its own
batches, clipped by its own norm, and unchanged after its last batch. Networks with dropout are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.federation.fit import LocalModule
from lit_fednas.federation.kernels import ImagesAsColumns, compile_now, compiled
from lit_fednas.federation.settings import ClientSettings
from lit_fednas.messages import ClientTask
from lit_fednas.objectives import Objective
from lit_fednas.objectives.base import keeps_state
from lit_fednas.rng import isolated
from lit_fednas.supernets import Supernet

Batch = tuple[Tensor, Tensor]
Rows = slice | Tensor

_ALONE = "set client.clients_per_fit to 1"
# these optimizers step element by element, so that a step on stacked tensors is one step for each client
_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
    *(optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD),
)


def check_stackable(settings: ClientSettings, objective: Objective) -> None:
    """Validates that the objective and the optimizer allow several clients in one fit."""
    field = f"client.clients_per_fit: {settings.clients_per_fit}"
    if not objective.stackable or keeps_state(objective):
        raise ConfigError(f"{field}: the objective {type(objective).__name__} is not stackable; {_ALONE}")
    optimizer = settings.local_optimizer([nn.Parameter(torch.zeros(1, 1))])
    if type(optimizer) not in _ELEMENTWISE:
        raise ConfigError(
            f"{field} clients in one fit need an optimizer of torch that steps element by element, such as SGD or "
            f"Adam, and client.optimizer is {type(optimizer).__name__}; {_ALONE}"
        )


class StackedGradients:
    """The gradient function of an architecture, mapped over clients; a dry run validates that it can be mapped."""

    def __init__(self, supernet: Supernet, arch: Any, objective: Objective, settings: ClientSettings) -> None:
        self.network = network = supernet.skeleton(arch)
        self.objective = objective
        self._with_loss = _NetworkWithLoss(network, objective)
        self._mapped = vmap(grad_and_value(self._loss), randomness="error")
        # batch norm refuses batches of one example
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())
        network.train()
        weights, shape = supernet.views(arch), supernet.input_shape
        weight = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        dtype = weight.dtype if supernet.input_dtype.is_floating_point else supernet.input_dtype
        inputs = torch.zeros(2, *shape, dtype=dtype, device=weight.device)
        batch = inputs, objective.data_task.example_targets(2, shape, weight.device)
        self.trained = self._dry_run_of_one(weights, batch)
        self._dry_run_of_two(weights, batch, settings.clients_per_fit)
        self._compiled: Callable[..., tuple[dict[str, Tensor], Tensor]] | None = None
        self._to_compile = (settings.clients_per_fit, settings.batch_size) if settings.compile else ()

    def __call__(
        self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Returns gradients ``[clients, ...]`` by name and losses ``[clients]``, from one batch per client."""
        tensors = (parameters, others, inputs, targets)
        if inputs.shape[:2] == self._to_compile:
            return (self._compiled or self._compile(*tensors))(*tensors)
        return self._mapped(*tensors)

    def _compile(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Any:
        mapped = compiled(self._mapped, batch[0].device)
        examples: list[Any] = [{name: t.clone() for name, t in part.items()} for part in (parameters, others)]
        examples += [torch.zeros_like(part) for part in batch]
        compile_now(lambda: mapped(*examples), batch[0].device)
        self._compiled = mapped
        return mapped

    def _loss(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        tensors = {f"network.{name}": tensor for part in (parameters, others) for name, tensor in part.items()}
        with ImagesAsColumns():
            return functional_call(self._with_loss, tensors, batch)

    def _dry_run_of_one(self, weights: Mapping[str, Tensor], batch: Batch) -> tuple[str, ...]:
        """Returns the names of parameters that receive a gradient; torch's optimizers skip the others."""
        names = [name for name, parameter in self.network.named_parameters() if parameter.requires_grad]
        parameters = {name: weights[name].detach().clone().requires_grad_() for name in names}
        others = {name: tensor.detach().clone() for name, tensor in weights.items() if name not in parameters}
        with torch.enable_grad(), isolated(0, "dry run", device=batch[0].device):
            loss = self._loss(parameters, others, *batch)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(names, gradients, strict=True) if gradient is not None)

    def _dry_run_of_two(self, weights: Mapping[str, Tensor], batch: Batch, clients_per_fit: int) -> None:
        """Validates that the gradient function can be mapped over two clients."""
        pairs = {name: torch.stack([tensor.detach()] * 2) for name, tensor in weights.items()}
        parameters = {name: pairs.pop(name) for name in self.trained}
        try:
            self._mapped(parameters, pairs, *(torch.stack([part] * 2) for part in batch))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if "random" in reason:
                fault = "the network draws random numbers, as dropout does, which cannot be stacked"
            else:
                fault = f"the network or the objective cannot be stacked ({reason})"
            raise ConfigError(f"client.clients_per_fit: {clients_per_fit}: {fault}; {_ALONE}") from error


class _NetworkWithLoss(nn.Module):
    """A network and its loss as one module, so that ``functional_call`` can replace the network's weights."""

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(self.network, inputs, targets)


@dataclass
class StackedClient:
    """One of a fit's clients, with its batches and counters."""

    task: ClientTask
    batches: Iterator[Batch] = field(init=False)
    num_steps: int = 0
    num_seen: int = 0


class StackedModule(LocalModule):
    """Trains the stacked weights of several clients, each on its own batches."""

    def __init__(
        self,
        gradients: StackedGradients,
        weights: Mapping[str, Tensor],
        clients: Sequence[StackedClient],
        settings: ClientSettings,
        lr_factor: float,
    ) -> None:
        super().__init__(settings)
        self.gradients = gradients
        self.network = gradients.network
        self.weights = weights
        self.clients = clients
        self.lr_factor = lr_factor
        self._trained = {name: weights[name].detach().requires_grad_() for name in gradients.trained}
        self.trained = self._trained.values()
        self._others = {name: tensor for name, tensor in weights.items() if name not in self._trained}
        self._active_rows = list(range(len(clients)))
        self._final_weights: list[tuple[Rows, list[Tensor]]] = []  # rows of clients without further batches
        weight = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        self._loss_sums = weight.new_zeros(len(clients))
        self._counts = weight.new_zeros(len(clients), dtype=torch.int64)

    def steps(self) -> Iterator[dict[int, Batch]]:
        """Yields one batch per client and step; networks with batch norm skip batches of one example."""
        min_size = 2 if self.gradients.needs_two else 1
        active_clients = dict(enumerate(self.clients))
        while active_clients:
            next_batches = {
                row: next((batch for batch in client.batches if len(batch[1]) >= min_size), None)
                for row, client in active_clients.items()
            }
            batches = {row: batch for row, batch in next_batches.items() if batch is not None}
            active_clients = {row: active_clients[row] for row in batches}
            if batches:
                yield batches

    @override
    def differentiate(self, batch: dict[int, Batch], scaler: torch.amp.GradScaler) -> bool:
        """Computes the gradients of each client with a batch; batches of one shape are computed together."""
        if finished_rows := [row for row in self._active_rows if row not in batch]:
            rows = self._index(finished_rows)
            self._final_weights.append((rows, [leaf.detach()[rows].clone() for leaf in self._trained.values()]))
            self._active_rows = [row for row in self._active_rows if row not in finished_rows]
        by_shape: dict[torch.Size, list[int]] = {}
        for row, (inputs, _) in batch.items():
            by_shape.setdefault(inputs.shape, []).append(row)
        for shape_rows in by_shape.values():
            self._differentiate(shape_rows, [batch[row] for row in shape_rows])
        return True

    @torch.no_grad()
    @override
    def clip(self, max_norm: float) -> None:
        gradients = [leaf.grad for leaf in self._trained.values() if leaf.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
        # the same formula as in torch.nn.utils.clip_grad_norm_
        factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))

    def on_train_end(self) -> None:
        """Restores the weights of clients that finished early, because the optimizer has moved them since."""
        for rows, weights in self._final_weights:
            for leaf, values in zip(self._trained.values(), weights, strict=True):
                leaf.detach()[rows] = values
        self._final_weights.clear()

    @torch.no_grad()
    def outcomes(self) -> list[list[float]]:
        """Returns for each client the sum of its losses, their count, and its weights' norms; syncs once."""
        count = len(self.clients)
        floating = [t.reshape(count, -1) for t in self.weights.values() if t.is_floating_point()]
        norms = torch.stack([torch.linalg.vector_norm(tensor, dim=1) for tensor in floating]).sum(0)
        return torch.stack([self._loss_sums.double(), self._counts.double(), norms.double()], 1).tolist()

    @torch.no_grad()
    def _differentiate(self, rows: list[int], batches: list[Batch]) -> None:
        """Writes the gradients of some clients into their rows of the stacked gradients."""
        index = self._index(rows)
        clients = [self.clients[row] for row in rows]
        others = {name: tensor[index] for name, tensor in self._others.items()}
        targets = torch.stack([labels for _, labels in batches])
        gradients, losses = self.gradients(
            {name: leaf.detach()[index] for name, leaf in self._trained.items()},
            others,
            torch.stack([inputs for inputs, _ in batches]),
            targets,
        )
        for name, leaf in self._trained.items():
            if len(rows) == len(self.clients):
                leaf.grad = gradients[name].contiguous()
                continue
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
            leaf.grad[index] = gradients[name]
        if not isinstance(index, slice):  # a slice gives views, which the forward pass has already updated
            for name, tensor in self._others.items():
                tensor[index] = others[name]
        size = len(batches[0][1])
        counts = self.gradients.objective.data_task.count(targets.flatten(0, 1)).view(len(rows), size).sum(1)
        self._loss_sums[index] += losses * counts
        self._counts[index] += counts
        for client in clients:
            client.num_steps += 1
            client.num_seen += size

    def _index(self, rows: Sequence[int]) -> Rows:
        """Returns an index of ascending rows of stacked tensors: a slice if the rows are adjacent."""
        if rows[-1] - rows[0] < len(rows):
            return slice(rows[0], rows[-1] + 1)
        index, device = torch.tensor(rows), self._loss_sums.device
        if device.type == "cuda":  # a copy from pinned memory does not wait for the device
            index = index.pin_memory()
        return index.to(device, non_blocking=True)
