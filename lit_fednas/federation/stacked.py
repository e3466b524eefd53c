"""Several clients of one architecture in one fit: each operation, which is small, is started once for all of them.

The clients' weights are stacked in tensors ``[clients, ...]``, ``torch.func`` maps the gradient function over them, and
an ordinary optimizer steps them all. Up to the order of float sums each client is trained as if it were alone: on its
own batches, clipped by its own norm, and unchanged once its batches have ended. Networks with dropout are refused.
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
# they step element by element, so a step on stacked tensors is one step for each client
_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
    *(optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD),
)


def check_stackable(settings: ClientSettings, objective: Objective) -> None:
    """Validates that the settings allow to train several clients in one fit."""
    asked = f"client.clients_per_fit: {settings.clients_per_fit}"
    if not objective.stackable or keeps_state(objective):
        raise ConfigError(f"{asked}: the objective {type(objective).__name__} is not stackable; {_ALONE}")
    optimizer = settings.local_optimizer([nn.Parameter(torch.zeros(1, 1))])
    if type(optimizer) not in _ELEMENTWISE:
        raise ConfigError(
            f"{asked} clients in one fit need an optimizer of torch that steps element by element, such as SGD or "
            f"Adam, and client.optimizer is {type(optimizer).__name__}; {_ALONE}"
        )


class StackedGradients:
    """The gradient function of an architecture, mapped over clients; a dry run shows whether that is possible."""

    def __init__(self, supernet: Supernet, arch: Any, objective: Objective, settings: ClientSettings) -> None:
        self.network = network = supernet.skeleton(arch)
        self.objective = objective
        self._with_loss = _NetworkWithLoss(network, objective)
        self._mapped = vmap(grad_and_value(self._loss), randomness="error")
        # whether it normalises over batches, which one example does not allow
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())
        network.train()
        weights, shape = supernet.views(arch), supernet.input_shape
        some = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        dtype = some.dtype if supernet.input_dtype.is_floating_point else supernet.input_dtype
        inputs = torch.zeros(2, *shape, dtype=dtype, device=some.device)
        batch = inputs, objective.data_task.example_targets(2, shape, some.device)
        self.trained = self._dry_run_of_one(weights, batch)
        self._dry_run_of_two(weights, batch, settings.clients_per_fit)
        self._compiled: Callable[..., tuple[dict[str, Tensor], Tensor]] | None = None
        self._to_compile = (settings.clients_per_fit, settings.batch_size) if settings.compile else ()

    def __call__(
        self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Returns gradients ``[clients, ...]`` by name and losses ``[clients]`` of a batch of each client."""
        tensors = (parameters, others, inputs, targets)
        if inputs.shape[:2] == self._to_compile:
            return (self._compiled or self._compile(*tensors))(*tensors)
        return self._mapped(*tensors)

    def _compile(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Any:
        mapped = compiled(self._mapped, batch[0].device)
        like: list[Any] = [{name: t.clone() for name, t in part.items()} for part in (parameters, others)]
        like += [torch.zeros_like(part) for part in batch]
        compile_now(lambda: mapped(*like), batch[0].device)
        self._compiled = mapped
        return mapped

    def _loss(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        named = {f"network.{name}": tensor for part in (parameters, others) for name, tensor in part.items()}
        with ImagesAsColumns():
            return functional_call(self._with_loss, named, batch)

    def _dry_run_of_one(self, weights: Mapping[str, Tensor], batch: Batch) -> tuple[str, ...]:
        """Returns the parameters that get a gradient; torch's optimizers skip the others."""
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
                what = "the network draws random numbers, as dropout does, which cannot be stacked"
            else:
                what = f"the network or the objective cannot be stacked ({reason})"
            raise ConfigError(f"client.clients_per_fit: {clients_per_fit}: {what}; {_ALONE}") from error


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
    """One of the clients that are trained in one fit."""

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
        self._going = list(range(len(clients)))
        self._ended: list[tuple[Rows, list[Tensor]]] = []  # rows, and their values
        some = next(tensor for tensor in weights.values() if tensor.is_floating_point())
        self._loss_sums = some.new_zeros(len(clients))
        self._units = some.new_zeros(len(clients), dtype=torch.int64)

    def steps(self) -> Iterator[dict[int, Batch]]:
        """Draws the clients' batches, but for those of one example if the network normalises over batches."""
        least = 2 if self.gradients.needs_two else 1
        going = dict(enumerate(self.clients))
        while going:
            drawn = {
                row: next((batch for batch in client.batches if len(batch[1]) >= least), None)
                for row, client in going.items()
            }
            batches = {row: batch for row, batch in drawn.items() if batch is not None}
            going = {row: going[row] for row in batches}
            if batches:
                yield batches

    @override
    def differentiate(self, batch: dict[int, Batch], scaler: torch.amp.GradScaler) -> bool:
        """Computes the gradients of every client that has a batch; of those with batches of one shape at once."""
        if ended := [row for row in self._going if row not in batch]:  # their weights are kept until the fit ends
            at = self._rows(ended)
            self._ended.append((at, [leaf.detach()[at].clone() for leaf in self._trained.values()]))
            self._going = [row for row in self._going if row not in ended]
        by_shape: dict[torch.Size, list[int]] = {}
        for row, (inputs, _) in batch.items():
            by_shape.setdefault(inputs.shape, []).append(row)
        for rows in by_shape.values():
            self._differentiate(rows, [batch[row] for row in rows])
        return True

    @torch.no_grad()
    @override
    def clip(self, max_norm: float) -> None:
        gradients = [leaf.grad for leaf in self._trained.values() if leaf.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
        # as torch.nn.utils.clip_grad_norm_ does
        factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))

    def on_train_end(self) -> None:
        """Restores the weights of clients that ended early, which the optimizer has moved since."""
        for rows, kept in self._ended:
            for leaf, values in zip(self._trained.values(), kept, strict=True):
                leaf.detach()[rows] = values
        self._ended.clear()

    @torch.no_grad()
    def outcomes(self) -> list[list[float]]:
        """Returns, per client, the sum of its losses, their units, and its weights' norms, with one read."""
        count = len(self.clients)
        floating = [t.reshape(count, -1) for t in self.weights.values() if t.is_floating_point()]
        norms = torch.stack([torch.linalg.vector_norm(tensor, dim=1) for tensor in floating]).sum(0)
        return torch.stack([self._loss_sums.double(), self._units.double(), norms.double()], 1).tolist()

    @torch.no_grad()
    def _differentiate(self, rows: list[int], batches: list[Batch]) -> None:
        """Writes the gradients of some clients into their rows of the stacked gradients."""
        at = self._rows(rows)
        clients = [self.clients[row] for row in rows]
        others = {name: tensor[at] for name, tensor in self._others.items()}
        targets = torch.stack([labels for _, labels in batches])
        gradients, losses = self.gradients(
            {name: leaf.detach()[at] for name, leaf in self._trained.items()},
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
            leaf.grad[at] = gradients[name]
        if not isinstance(at, slice):  # of which the others are copies
            for name, tensor in self._others.items():
                tensor[at] = others[name]
        size = len(batches[0][1])
        units = self.gradients.objective.data_task.units(targets.flatten(0, 1)).view(len(rows), size).sum(1)
        self._loss_sums[at] += losses * units
        self._units[at] += units
        for client in clients:
            client.num_steps += 1
            client.num_seen += size

    def _rows(self, rows: Sequence[int]) -> Rows:
        """Returns what indexes some rows, ascending, of stacked tensors: a view of them where they are adjacent."""
        if rows[-1] - rows[0] < len(rows):
            return slice(rows[0], rows[-1] + 1)
        index, device = torch.tensor(rows), self._loss_sums.device
        if device.type == "cuda":  # from pinned memory, so that the device need not be waited for
            index = index.pin_memory()
        return index.to(device, non_blocking=True)
