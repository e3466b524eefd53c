"""What is trained for a client: its network, and the LightningModule of a sub-Trainer's fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from lit_fednas.federation.fast.compiled import uncompiled
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.federation.settings import ClientSettings
from lit_fednas.objectives import Objective


class ClientNetwork:
    """A network of one architecture, in which one client after the other is trained.

    What is needed of its modules for each client is looked up once.

    Args:
        network: The network, its weights unset.

    Attributes:
        network: The network.
        parameters: Its parameters.
        weights: All its tensors by name, detached; the memory is the network's own.
        needs_two: Whether it normalises over batches, which one example does not allow.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.parameters = list(network.parameters())
        self.weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
        self.weights.update(network.named_buffers())
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())

    @torch.no_grad()
    def receive(self, weights: Mapping[str, Tensor]) -> None:
        """Writes weights, by name, into the network's tensors."""
        torch._foreach_copy_(list(self.weights.values()), [weights[name] for name in self.weights])

    def forget_gradients(self) -> None:
        """Releases the gradients' memory."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def size(self) -> Tensor:
        """Returns the sum of the tensors' norms; finite if all weights (and their squares) are."""
        return torch.stack(torch._foreach_norm([t for t in self.weights.values() if t.is_floating_point()])).sum()


class ClientModule(pl.LightningModule):
    """Trains one network after the other, each on one client's batches."""

    client_network: ClientNetwork

    def __init__(self, objective: Objective, settings: ClientSettings) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.objective = objective
        self.settings = settings

    def begin(
        self,
        client_network: ClientNetwork,
        lr_factor: float = 1.0,
        keep_going: Callable[[], None] | None = None,
    ) -> None:
        """Prepares for the next client."""
        self.client_network = client_network
        self.network = client_network.network
        self.lr_factor = lr_factor
        self.keep_going = keep_going
        self.num_steps = 0
        self.num_seen = 0
        self._loss_sum: Tensor | float = 0.0
        self._units: Tensor | int = 0

    def configure_optimizers(self) -> Optimizer:
        """Returns the local optimizer at the round's learning rate; its scheduler is kept."""
        optimizer, self._scheduler = self.settings.optimizers(self.client_network.parameters, self.lr_factor)
        return optimizer

    def on_train_start(self) -> None:
        """Puts the network into training mode."""
        self.network.train()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        """Takes one local step, but for a batch of one example if the network normalises over batches."""
        if self.keep_going is not None:
            self.keep_going()
        inputs, targets = batch
        size = len(targets)
        if size == 1 and self.client_network.needs_two:
            return None
        trainer = self.trainer
        assert isinstance(trainer, ClientTrainer)
        trainer.client_optimizer.zero_grad(set_to_none=True)  # before the forward: its activations take their room
        compiled = not self.settings.compile or size == self.settings.batch_size
        with nullcontext() if compiled else uncompiled():
            loss = self.objective.loss(self.network, inputs, targets)
        self.manual_backward(loss)
        if self.settings.clip_norm is not None:
            trainer.client_strategy.unscale_gradients()
            nn.utils.clip_grad_norm_(self.client_network.parameters, self.settings.clip_norm)
        trainer.client_strategy.apply_gradients(self)
        if self._scheduler is not None:
            self._scheduler.step()
        units = self.objective.data_task.units(targets).sum()
        self._loss_sum = self._loss_sum + loss.detach() * units
        self._units = self._units + units
        self.num_seen += size
        self.num_steps += 1
        return -1 if self.num_steps == self.settings.steps else None

    def outcome(self) -> tuple[float, float, float]:
        """Returns the sum of the losses, the number of their units and :meth:`ClientNetwork.size`, by one read."""
        size = self.client_network.size()
        figures = [torch.as_tensor(one, device=size.device) for one in (self._loss_sum, self._units)]
        return tuple(torch.stack([*(one.double() for one in figures), size.double()]).tolist())
