"""One client's training: a small LightningModule in a sub-Trainer's fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import count
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from lit_fednas.data.clients import ClientData
from lit_fednas.errors import ClientError
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate
from lit_fednas.objectives import Objective
from lit_fednas.rng import generator, isolated, numpy_generator
from lit_fednas.supernets import Supernet

_NETWORKS_KEPT = 4


class ClientModule(pl.LightningModule):
    """Trains one network on one client's batches.

    Args:
        network: The subnet as the client received it; trained in place.
        objective: The local loss.
        settings: Optimizer, steps, clipping.
        lr_factor: What the round multiplies the learning rate with.
        keep_going: Called before every batch; raises to end the fit.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        settings: ClientSettings,
        lr_factor: float = 1.0,
        keep_going: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network
        self.objective = objective
        self.settings = settings
        self.lr_factor = lr_factor
        self.keep_going = keep_going
        self.num_steps = 0
        self.num_seen = 0
        self.loss_sum: Tensor | float = 0.0
        self._needs_two = any(isinstance(module, _BatchNorm) for module in network.modules())

    def configure_optimizers(self) -> Optimizer:
        """The local optimizer at the round's learning rate, and its scheduler if there is one."""
        optimizer = self.settings.optimizer(self.network.parameters())
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.lr_factor
        self._scheduler = self.settings.scheduler(optimizer) if self.settings.scheduler else None
        return optimizer

    def on_train_start(self) -> None:
        """Puts the network into training mode."""
        self.network.train()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        """One local step; -1 when the steps asked for are done.

        A batch of one example is left out if the network normalises over batches, which one example does
        not allow.
        """
        if self.keep_going is not None:
            self.keep_going()
        inputs, targets = batch
        size = len(targets)
        if size == 1 and self._needs_two:
            return None
        trainer = self.trainer
        assert isinstance(trainer, ClientTrainer)
        trainer.client_optimizer.zero_grad(set_to_none=True)  # before the forward: its activations take their room
        loss = self.objective.loss(self.network, inputs, targets)
        self.manual_backward(loss)
        if self.settings.clip_norm is not None:
            trainer.client_strategy.unscale_gradients()
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip_norm)
        trainer.client_strategy.apply_gradients(self)
        if self._scheduler is not None:
            self._scheduler.step()
        self.loss_sum = self.loss_sum + loss.detach() * size
        self.num_seen += size
        self.num_steps += 1
        return -1 if self.num_steps == self.settings.steps else None


class ClientFits:
    """Trains clients one after the other with one reused Trainer and a few reused networks.

    A client's weights are written into the tensors of a network that is there already, trained, and handed
    out as the update; so they must be aggregated before the next fit.

    Args:
        supernet: The global weights.
        objective: The local loss.
        data: All clients' data.
        settings: How clients train.
        faults: What happens when one fails.
        seed: The run's seed.
        check: Called before every batch; raises ``Interrupted`` if the run was asked to stop.
    """

    def __init__(
        self,
        supernet: Supernet,
        objective: Objective,
        data: ClientData,
        settings: ClientSettings,
        faults: FaultPolicy,
        seed: int,
        check: Callable[[], None],
    ) -> None:
        self.supernet = supernet
        self.objective = objective
        self.data = data
        self.settings = settings
        self.faults = faults
        self.seed = seed
        self.check = check
        self.device = next(iter(supernet.shared_tensors().values())).device
        self.trainer = ClientTrainer(self.device, settings.precision)
        self._networks: OrderedDict[Any, nn.Module] = OrderedDict()

    def fit(self, task: ClientTask) -> tuple[ClientResult, ClientUpdate | None]:
        """Trains one client.

        Returns:
            How it went, and the update if it can be used.

        Raises:
            ClientError: The fit failed and the policy is to raise.
            Interrupted: The run was asked to stop.
        """
        start = perf_counter()
        try:
            update = self._train(task, start)
        except Interrupted:
            raise
        except _Skip as skip:
            result = ClientResult(task, skip.status, skip.reason, seconds=perf_counter() - start)
            if self.faults.on_client_error == "raise" and skip.status in ("non-finite", "timeout"):
                raise ClientError(f"round {task.round}, client {task.client}: {skip.reason}") from None
            return result, None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if self.faults.on_client_error == "raise":
                raise ClientError(f"round {task.round}, client {task.client}: {reason}") from error
            return ClientResult(task, "error", reason, seconds=perf_counter() - start), None
        result = ClientResult(
            task,
            num_steps=update.num_steps,
            num_seen=update.num_seen,
            loss=update.loss,
            seconds=perf_counter() - start,
            report=update.report,
        )
        return result, update

    def _train(self, task: ClientTask, start: float) -> ClientUpdate:
        address = (task.round, task.client)
        if self.faults.dropout_rate > 0:
            draw = numpy_generator(self.seed, "dropout-of-client", *address).random()
            if draw < self.faults.dropout_rate:
                raise _Skip("dropped", "the client went away")
        network = self._network(task.arch)
        self.supernet.load_into(network, task.arch)
        module = ClientModule(
            network, self.objective, self.settings, task.lr_factor, lambda: self._keep_going(start)
        )
        with isolated(self.seed, "client", *address, device=self.device):
            self.objective.begin(network, task, generator(self.seed, "objective", *address))
            self.trainer.fit(module, train_dataloaders=self._batches(task, module))
        network.zero_grad(set_to_none=True)
        if module.num_steps == 0:
            raise _Skip("empty", f"no batch to train on among {task.num_examples} examples")
        weights = {name: p.detach() for name, p in network.named_parameters()}
        weights.update(network.named_buffers())
        if not _finite(weights.values()):
            raise _Skip(
                "non-finite",
                "the trained weights are not finite; lower client.optimizer's lr or set client.clip_norm",
            )
        return ClientUpdate(
            task=task,
            weights=weights,
            num_steps=module.num_steps,
            num_seen=module.num_seen,
            loss=float(module.loss_sum) / module.num_seen,
            report=self.objective.report(),
        )

    def _batches(self, task: ClientTask, module: ClientModule) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch of the client's batches; if steps are counted, until an epoch allows none."""
        for epoch in count() if self.settings.steps is not None else range(self.settings.epochs):
            draws = generator(self.seed, "batches", task.round, task.client, epoch)
            before = module.num_steps
            yield from self.data.batches(
                task.client, self.settings.batch_size, draws, drop_last=self.settings.drop_last
            )
            if module.num_steps == before:
                return

    def _network(self, arch: Any) -> nn.Module:
        if arch not in self._networks:
            if len(self._networks) >= _NETWORKS_KEPT:
                self._networks.popitem(last=False)
            network = self.supernet.empty_subnet(arch)
            if self.settings.channels_last:
                network = network.to(memory_format=torch.channels_last)
            self._networks[arch] = network
        self._networks.move_to_end(arch)
        return self._networks[arch]

    def _keep_going(self, start: float) -> None:
        self.check()
        limit = self.faults.time_limit
        if limit is not None and perf_counter() - start > limit:
            raise _Skip("timeout", f"took longer than faults.time_limit, {limit:g} s")


class _Skip(Exception):
    """A client's update is not used, for a known reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@torch.no_grad()
def _finite(tensors: Any) -> bool:
    """Whether all numbers are finite (and their squares do not overflow), with one look at the device."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return bool(torch.stack(torch._foreach_norm(floating)).sum().isfinite()) if floating else True
