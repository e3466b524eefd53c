"""Several clients of one architecture in one fit: stacked weights, and one gradient function mapped over them.

Starting an operation of a small network takes longer than computing it. So the weights of K clients are stacked
in tensors ``[K, ...]``, ``torch.func`` maps the gradient function over their first dimension, and an ordinary
optimizer steps them all: every operation is started once for K clients.

Up to the order of float sums every client is trained as if it were alone: on its own batches, without padding;
with its own dropout masks; clipped by its own norm; and unchanged once its batches have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fednas.errors import ConfigError
from lit_fednas.federation.fast.stacked_gradients import ALONE, Batch, StackedGradients
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.messages import ClientTask
from lit_fednas.objectives import Objective
from lit_fednas.objectives.client_state import keeps_state

# they step element by element, so a step on stacked tensors is one step for each client
_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
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


class StackedModule(pl.LightningModule):
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
        super().__init__()
        self.automatic_optimization = False
        self.gradients = gradients
        self.weights = weights
        self.clients = clients
        self.settings = settings
        self.lr_factor = lr_factor
        self.keep_going = keep_going
        self.num_steps = 0
        self._trained = {name: weights[name].detach().requires_grad_() for name in gradients.trained}
        self._others = {name: tensor for name, tensor in weights.items() if name not in self._trained}
        self._going = list(range(len(clients)))
        self._ended: list[tuple[Rows, list[Tensor]]] = []
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

    def configure_optimizers(self) -> Optimizer:
        """Returns the local optimizer over the stacked parameters; its scheduler is kept."""
        optimizer, self._scheduler = self.settings.optimizers(self._trained.values(), self.lr_factor)
        return optimizer

    def on_train_start(self) -> None:
        """Puts the network into training mode."""
        self.gradients.start()

    def training_step(self, batch: dict[int, Batch], batch_idx: int) -> Any:
        """Takes one step of every client that has a batch; those with batches of one shape at once."""
        self.keep_going()
        trainer = self.trainer
        assert isinstance(trainer, ClientTrainer)
        self._leave_out([row for row in self._going if row not in batch])
        trainer.client_optimizer.zero_grad(set_to_none=True)
        by_shape: dict[torch.Size, list[int]] = {}
        for row, (inputs, _) in batch.items():
            by_shape.setdefault(inputs.shape, []).append(row)
        for rows in by_shape.values():
            self._differentiate(rows, [batch[row] for row in rows])
        if self.settings.clip_norm is not None:
            clip_each([leaf.grad for leaf in self._trained.values()], self.settings.clip_norm)
        trainer.client_strategy.apply_gradients(self)
        if self._scheduler is not None:
            self._scheduler.step()
        self.num_steps += 1
        return -1 if self.num_steps == self.settings.steps else None

    def on_train_end(self) -> None:
        """Restores the weights of clients that ended early, which the optimizer has moved since."""
        for rows, kept in self._ended:
            for leaf, values in zip(self._trained.values(), kept, strict=True):
                rows.write(leaf.detach(), values)
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
            at = Rows(rows, self._loss_sums.device)
            self._ended.append((at, [at.read(leaf.detach()).clone() for leaf in self._trained.values()]))
            self._going = [row for row in self._going if row not in rows]

    @torch.no_grad()
    def _differentiate(self, rows: list[int], batches: list[Batch]) -> None:
        """Writes the gradients of some clients into their rows of the stacked gradients."""
        at = Rows(rows, self._loss_sums.device)
        clients = [self.clients[row] for row in rows]
        others = {name: at.read(tensor) for name, tensor in self._others.items()}
        targets = torch.stack([labels for _, labels in batches])
        gradients, losses = self.gradients(
            {name: at.read(leaf.detach()) for name, leaf in self._trained.items()},
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
            at.write(leaf.grad, gradients[name])
        if at.copies:
            for name, tensor in self._others.items():
                at.write(tensor, others[name])
        size = len(batches[0][1])
        units = self.gradients.objective.data_task.units(targets.flatten(0, 1)).view(len(rows), size).sum(1)
        at.write(self._loss_sums, at.read(self._loss_sums) + losses * units)
        at.write(self._units, at.read(self._units) + units)
        for client in clients:
            client.num_steps += 1
            client.num_seen += size


class Rows:
    """Some rows of stacked tensors: a view of them where they are adjacent, else a copy.

    Args:
        rows: Their numbers, ascending.
        device: Where the tensors lie.

    Example:
        >>> tensor = torch.arange(8).view(4, 2)
        >>> Rows([0, 2], tensor.device).read(tensor).tolist()
        [[0, 1], [4, 5]]

    Attributes:
        copies: Whether they are copies.
    """

    def __init__(self, rows: Sequence[int], device: torch.device) -> None:
        self.copies = rows[-1] - rows[0] >= len(rows)
        if not self.copies:
            self._slice = slice(rows[0], rows[-1] + 1)
            return
        index = torch.tensor(rows)
        if device.type == "cuda":  # from pinned memory, so that the device need not be waited for
            index = index.pin_memory()
        self._index = index.to(device, non_blocking=True)

    def read(self, tensor: Tensor) -> Tensor:
        """Returns the rows of ``[all, ...]``, as ``[rows, ...]``."""
        return tensor.index_select(0, self._index) if self.copies else tensor[self._slice]

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Sets the rows of ``[all, ...]`` to ``[rows, ...]``."""
        if self.copies:
            tensor.index_copy_(0, self._index, values)
        else:
            tensor[self._slice] = values


@torch.no_grad()
def clip_each(gradients: Sequence[Tensor | None], max_norm: float) -> None:
    """Clips each client's gradients ``[clients, ...]``, in place, as ``torch.nn.utils.clip_grad_norm_``."""
    present = [gradient for gradient in gradients if gradient is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in present])
    factors = (max_norm / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in present:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
