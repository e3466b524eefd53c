"""Several clients of one architecture in one fit: each operation, which is small, is started once for all of them.

The clients' weights are stacked in tensors ``[clients, ...]``, ``torch.func`` maps the gradient function over them, and
an ordinary optimizer steps them all. Up to the order of float sums each client is trained as if it were alone: on its
own batches, with its own dropout masks, clipped by its own norm, and unchanged once its batches have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn, optim
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.federation.fast.stacked_gradients import ALONE, Batch, StackedGradients
from lit_fednas.federation.fit import LocalModule
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.messages import ClientTask
from lit_fednas.objectives import Objective
from lit_fednas.objectives.base import keeps_state

Rows = slice | Tensor

# they step element by element, so a step on stacked tensors is one step for each client
_ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
    *(optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD),
)


def check_stackable(settings: ClientSettings, faults: FaultPolicy, objective: Objective) -> None:
    """Validates that the settings allow to train several clients in one fit."""
    asked = f"client.clients_per_fit: {settings.clients_per_fit}"
    if faults.time_limit is not None:
        raise ConfigError(
            f"{asked} clients in one fit cannot be stopped one by one after faults.time_limit, "
            f"{faults.time_limit:g} s; set it to null, or {ALONE}"
        )
    if not objective.stackable or keeps_state(objective):
        raise ConfigError(
            f"{asked} clients in one fit is not possible with the objective {type(objective).__name__}, which is "
            f"not stackable; {ALONE}"
        )
    optimizer, _ = settings.optimizers([nn.Parameter(torch.zeros(1, 1))])
    if type(optimizer) not in _ELEMENTWISE:
        raise ConfigError(
            f"{asked} clients in one fit need an optimizer of torch that steps element by element, such as SGD or "
            f"Adam, and client.optimizer is {type(optimizer).__name__}; {ALONE}"
        )


@dataclass
class StackedClient:
    """One of the clients that are trained in one fit."""

    task: ClientTask
    draws: torch.Generator
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
        keep_going: Callable[[], None],
    ) -> None:
        super().__init__(settings)
        self.gradients = gradients
        self.weights = weights
        self.clients = clients
        self.lr_factor = lr_factor
        self.keep_going = keep_going
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

    def on_train_start(self) -> None:
        """Puts the network into training mode."""
        self.gradients.start()

    @override
    def differentiate(self, batch: dict[int, Batch]) -> bool:
        """Computes the gradients of every client that has a batch; of those with batches of one shape at once."""
        self._leave_out([row for row in self._going if row not in batch])
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
    def outcomes(self) -> list[tuple[float, float, float]]:
        """Returns, per client, the sum of its losses, their units, and its weights' norms, with one read."""
        count = len(self.clients)
        floating = [t.reshape(count, -1) for t in self.weights.values() if t.is_floating_point()]
        norms = torch.stack([torch.linalg.vector_norm(tensor, dim=1) for tensor in floating]).sum(0)
        return [
            tuple(row)
            for row in torch.stack([self._loss_sums.double(), self._units.double(), norms.double()], 1).tolist()
        ]

    def _leave_out(self, rows: list[int]) -> None:
        """Keeps the weights of clients that have no more batches."""
        if rows:
            at = self._rows(rows)
            self._ended.append((at, [leaf.detach()[at].clone() for leaf in self._trained.values()]))
            self._going = [row for row in self._going if row not in rows]

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
            [client.draws for client in clients],
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
