"""Differentiable architecture search on a client: FedNAS' local search (He, Annavaram and Avestimehr, 2020).

In "FedNAS: Federated Deep Learning via Neural Architecture Search", every client alternates between a step of the
weights and a step of the architecture parameters, and the server averages both. Here the architecture step comes first.
It minimises the training loss plus the validation loss (MiLeNAS: He, Ye, Shen and Zhang, 2020, "Mixed-Level
Reformulation", CVPR). DARTS' bi-level gradients are not implemented.
"""

from collections.abc import Iterator
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.objectives.wrapped import CountedObjective
from lit_fednas.ranges import NonNegativeFloat, PositiveFloat, checked
from lit_fednas.supernets import CellSupernet, Supernet
from lit_fednas.supernets.cells.supernet import MixedNetwork

Batch = tuple[Tensor, Tensor]
_BETAS = (0.5, 0.999)
_MAX_PASSES = 8  # forward passes per training example: usually three; validation batches may be larger


@checked("objective")
class DifferentiableSearch(CountedObjective):
    """Takes a step of a mixture's architecture parameters before every step of its weights.

    The architecture step uses the training batch and a batch of the client's validation data (``data.client_val``;
    half in DARTS and FedNAS). Its optimizer is Adam with DARTS' settings (App. A.1.1), new in each fit. The client
    sends the multiply-accumulates of all forward passes.

    Args:
        objective: The loss of a batch in both steps.
        val_weight: The weight of the validation loss in the architecture step (lambda).
        lr: The learning rate of the architecture parameters.
        weight_decay: The weight decay of the architecture parameters.

    Raises:
        ConfigError: A number is out of range. Before training: the supernet has no architecture parameters, a client
            has no validation data, or workers read the data. In a round: a client's architecture is no mixture.
    """

    compilable = False  # the loss also computes gradients of the architecture parameters
    supernet_kind: ClassVar[type] = CellSupernet

    def __init__(
        self,
        objective: Objective = TaskLoss(),
        val_weight: NonNegativeFloat = 1.0,
        lr: PositiveFloat = 3e-4,
        weight_decay: NonNegativeFloat = 1e-3,
    ) -> None:
        super().__init__(objective)
        self.val_weight = val_weight
        self.lr = lr
        self.weight_decay = weight_decay

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        no_val = np.flatnonzero((clients.sizes > 0) & (clients.split_sizes("val") == 0))
        if len(no_val):
            raise ConfigError(
                f"data.client_val: leaves {len(no_val)} of {clients.num_clients} clients (client {no_val[0]}) "
                f"without validation data, which model.objective {type(self).__name__} needs to train the "
                f"architecture; set it to 0.5, or give every client more examples"
            )
        self._clients = clients

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._alphas = cast(MixedNetwork, network).alphas
        if not self._alphas:
            raise ConfigError(
                f"model.objective: {type(self).__name__} trains a mixture, and client {task.client} has {task.arch}; "
                f"use FixedArchitecture with arch: {self._supernet.space.superset}, or another objective"
            )
        self._adam = torch.optim.Adam(self._alphas, self.lr, _BETAS, weight_decay=self.weight_decay)
        self._task = task
        self._generator = generator
        self._batches: Iterator[Batch] | None = None
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        if self._batches is None:
            self._batches = self._validation(len(targets))
        self._step(network, (inputs, targets), next(self._batches))
        return self._loss(network, (inputs, targets))

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        macs = result.num_seen * self._supernet.macs(result.task.arch)
        self.check_macs(result, macs, _MAX_PASSES * macs)

    def _step(self, network: nn.Module, train: Batch, val: Batch) -> None:
        """Updates the architecture parameters, which require gradients only during this step."""
        for alpha in self._alphas:
            alpha.requires_grad_(True)
        loss = self._loss(network, train) + self.val_weight * self._loss(network, val)
        gradients = torch.autograd.grad(loss, self._alphas)
        for alpha, gradient in zip(self._alphas, gradients, strict=True):
            alpha.grad = gradient
        self._adam.step()
        for alpha in self._alphas:
            alpha.grad = None
            alpha.requires_grad_(False)

    def _loss(self, network: nn.Module, batch: Batch) -> Tensor:
        self._macs += self._supernet.macs(self._task.arch) * len(batch[1])
        return self.objective.loss(network, *batch)

    def _validation(self, batch_size: int) -> Iterator[Batch]:
        """Yields batches of the client's validation data, pass after pass."""
        client = self._task.client
        while True:
            yield from self._clients.batches(client, batch_size, self._generator, split="val", drop_last=True)
