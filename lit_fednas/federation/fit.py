"""A client's fit: the runner of a round's fits, the record of one fit, and the module that a sub-Trainer fits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from typing_extensions import override

from lit_fednas.errors import ConfigError, in_one_line
from lit_fednas.federation.process import Interrupted
from lit_fednas.federation.settings import ClientSettings
from lit_fednas.messages import ClientResult, ClientState, ClientTask, ClientUpdate
from lit_fednas.objectives import Objective

#: A fit's result, with the update if it can be used.
Outcome = tuple[ClientResult, ClientUpdate | None]


class TaskRunner(ABC):
    """Trains the tasks of a round, by sub-Trainers in this process or on remote devices."""

    #: Returns a client's state from its last fit; the engine sets this function if the method has client states.
    state_of: Callable[[int], Mapping[str, Any]] = staticmethod(lambda client: {})

    @abstractmethod
    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Outcome]:
        """Trains the clients, and yields an outcome per task."""


@dataclass
class Fit:
    """The record of one client's fit, filled while it runs; the server sees only its :attr:`outcome`."""

    result: ClientResult
    weights: Mapping[str, Tensor] | None = None  # None without an update
    state: Mapping[str, ClientState] | None = None
    cause: Exception | None = None  # the exception behind a failure

    @contextmanager
    def isolating_failures(self) -> Iterator[None]:
        """Records an error as this client's failure; errors of the configuration are raised."""
        try:
            yield
        except (ConfigError, Interrupted):
            raise
        except Exception as error:
            self.cause = error
            self.fail("error", in_one_line(error))

    def note(self, **figures: Any) -> None:
        """Sets fields of the result."""
        self.result = replace(self.result, **figures)

    def fail(self, status: str, reason: str) -> None:
        """Records the reason for a missing update."""
        self.result, self.weights = ClientResult(self.result.task, status, reason), None

    def fill(
        self, weights: Mapping[str, Tensor], num_steps: int, num_seen: int, loss_sum: float, count: float, size: float
    ) -> None:
        """Records the trained weights; fails without steps, or if the loss or the norm ``size`` is not finite."""
        self.weights, loss = weights, loss_sum / max(count, 1)
        self.note(num_steps=num_steps, num_seen=num_seen, num_units=int(count), loss=loss)
        if num_steps == 0:
            self.fail("empty", f"no batch to train on among {self.result.task.num_examples} examples")
        elif not isfinite(size) or not isfinite(loss):
            subject = "loss is" if isfinite(size) else "trained weights are"
            self.fail("non-finite", f"the {subject} not finite; lower client.optimizer's lr or set client.clip_norm")

    @property
    def outcome(self) -> Outcome:
        """The result, and the update if it can be used."""
        if self.weights is None:
            return self.result, None
        return self.result, ClientUpdate(self.result, self.weights, self.state)


class ClientNetwork:
    """A network of one architecture that trains clients one after the other."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.parameters = list(network.parameters())
        # all parameters and buffers, detached; they share the network's memory
        self.weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
        self.weights.update(network.named_buffers())
        # batch norm refuses batches of one example
        self.needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())

    @torch.no_grad()
    def receive(self, weights: Mapping[str, Tensor]) -> None:
        """Copies weights into the network's tensors of the same names."""
        torch._foreach_copy_(list(self.weights.values()), [weights[name] for name in self.weights])

    @torch.no_grad()
    def size(self) -> Tensor:
        """Returns the sum of the tensors' norms, which is finite if all weights and their squares are finite."""
        return torch.stack(torch._foreach_norm([t for t in self.weights.values() if t.is_floating_point()])).sum()


class LocalModule(pl.LightningModule, ABC):
    """The module that a sub-Trainer fits: steps of the local optimizer along gradients that a subclass computes."""

    network: nn.Module
    trained: Iterable[Tensor]
    lr_factor: float
    num_steps = 0
    max_steps: int | None = None  # None trains until the batches end

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.settings = settings

    def configure_optimizers(self) -> Optimizer:
        """Returns the local optimizer at the round's learning rate."""
        return self.settings.local_optimizer(self.trained, self.lr_factor)

    def on_train_start(self) -> None:
        """Sets training mode, which an evaluation of the shared network may have left."""
        self.network.train()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Takes one local step, if the batch has gradients; returns -1 after the last step."""
        trainer: Any = self.trainer
        (optimizer,), scaler = trainer.optimizers, trainer.grad_scaler
        optimizer.zero_grad(set_to_none=True)  # frees memory for the activations of the forward pass
        if not self.differentiate(batch, scaler):
            return None
        if self.settings.clip_norm is not None:
            scaler.unscale_(optimizer)
            self.clip(self.settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        self.num_steps += 1
        return -1 if self.num_steps == self.max_steps else None

    @abstractmethod
    def differentiate(self, batch: Any, scaler: torch.amp.GradScaler) -> bool:
        """Computes the gradients of a batch, scaled for 16-mixed; returns whether the batch could be used."""

    @abstractmethod
    def clip(self, max_norm: float) -> None:
        """Clips each client's gradients by their norm."""


class ClientModule(LocalModule):
    """Trains one network after the other, each on one client's batches."""

    def __init__(self, objective: Objective, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.objective = objective

    def begin(self, client_network: ClientNetwork, lr_factor: float = 1.0, steps: int | None = None) -> None:
        """Prepares for the next client."""
        self.client_network = client_network
        self.network = client_network.network
        self.trained = client_network.parameters
        self.lr_factor = lr_factor
        self.max_steps = steps
        self.num_steps = self.num_seen = 0
        self._loss_sum: Tensor | float = 0.0
        self._count: Tensor | int = 0

    @override
    def differentiate(self, batch: tuple[Tensor, Tensor], scaler: torch.amp.GradScaler) -> bool:
        inputs, targets = batch
        size = len(targets)
        if size == 1 and self.client_network.needs_two:
            return False
        must_run_eager = self.settings.compile and size != self.settings.batch_size
        with torch.compiler.set_stance("force_eager") if must_run_eager else nullcontext():
            loss = self.objective.loss(self.network, inputs, targets)
        scaler.scale(loss).backward()  # Lightning's ``manual_backward`` would also call hooks, which nothing here uses
        count = self.objective.data_task.count(targets).sum()
        self._loss_sum = self._loss_sum + loss.detach() * count
        self._count = self._count + count
        self.num_seen += size
        return True

    @override
    def clip(self, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(self.client_network.parameters, max_norm)

    def outcome(self) -> tuple[float, float, float]:
        """Returns the sum of the losses, their count and :meth:`ClientNetwork.size`; syncs once."""
        size = self.client_network.size()
        figures = [torch.as_tensor(figure, device=size.device) for figure in (self._loss_sum, self._count)]
        return tuple(torch.stack([*(figure.double() for figure in figures), size.double()]).tolist())
