"""Client-side path sampling: FedorAS' local training (section 3.1, Eq. 2 to 4).

A client draws a new path for every batch, out of the operators that it received and under the budget of its tier,
takes one step on it, and counts the examples that went through each operator.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.loads import Load, NoLoad
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import PathNetwork, PathSupernet, Supernet, path_sampler


class PathSampling(WrappedObjective):
    """Trains a new path for every batch.

    Operators that are not on a batch's path get no gradient, so the local optimizer leaves them (and their
    momentum) as they are in that step.

    Args:
        objective: The loss on a path.
        load: How busy the client is with something else, batch by batch (section 3.1: "dynamic").

    It reports ``operators`` (examples by operator, for :class:`~lit_fednas.aggregation.OperatorAverage`), ``macs``
    (of all forward passes) and ``greatest`` (the dearest path drawn, in the unit of the tier's limit).
    """

    def __init__(self, objective: Objective = CrossEntropy(), load: Load = NoLoad()) -> None:
        super().__init__(objective)
        self.load = load

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Keeps what knows the operators' costs."""
        if not isinstance(supernet, PathSupernet):
            raise ConfigError(
                f"model.objective: PathSampling chooses among operators, {type(supernet).__name__} has none; use "
                f"a supernet such as PathCNN, or another objective"
            )
        self._supernet = supernet
        super().setup(supernet, clients)

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Prepares the sampler of the client's subspace."""
        self._sampler = path_sampler(self._supernet, task.arch, task.limits, task.unsupported, task.tier)
        macs = self._supernet.path_costs("macs")
        self._macs_fixed = macs.base(task.arch.labels)
        self._macs_of = macs.held(task.arch)
        self._task = task
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self._step = 0
        self._examples: Counter[str] = Counter()
        self._macs = 0
        self._greatest = 0
        super().begin(network, task, generator)

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss on a new path."""
        assert isinstance(network, PathNetwork)
        free = self.load.free(self._task.round, self._step, self._rng)
        path, cost = self._sampler.sample(self._rng, free)
        assert cost <= self._sampler.most, "a path over the client's budget"
        network.path = path
        loss = self.objective.loss(network, inputs, targets)
        self._step += 1
        self._greatest = max(self._greatest, cost)
        macs = self._macs_fixed
        for layer, name in enumerate(path):
            self._examples[f"{layer}.{name}"] += len(targets)
            macs += self._macs_of[layer][name]
        self._macs += macs * len(targets)
        return loss

    def report(self) -> dict[str, Any]:
        """Examples by operator, multiply-accumulates, and the dearest path."""
        counted = {"operators": dict(self._examples), "macs": self._macs, "greatest": self._greatest}
        return {**super().report(), **counted}
