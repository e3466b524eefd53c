"""Client-side path sampling: FedorAS' local training (section 3.1, Eq. 2 to 4).

A client draws a new path for every batch, out of the operators that it received and under the budget of its tier,
takes one step on it, and counts the examples that went through each operator.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientTask, MacsReport, OperatorReport, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.loads import Load, NoLoad
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import PathNetwork, PathSupernet, path_sampler


class PathSampling(WrappedObjective):
    """Trains a new path for every batch.

    Operators that are not on a batch's path get no gradient, so the local optimizer leaves them (and their
    momentum) as they are in that step.

    Args:
        objective: The loss on a path.
        load: The share of the client's budget that is free, batch by batch (section 3.1: "dynamic").

    It reports the examples by operator (for :class:`~lit_fednas.aggregation.OperatorAverage`), and the
    multiply-accumulates of all forward passes.

    Attributes:
        highest_cost: The cost of the most expensive path drawn in the last fit, in the unit of the tier's limit.
    """

    supernet_kind: ClassVar[type] = PathSupernet
    added_reports: ClassVar[tuple[type[Report], ...]] = (OperatorReport, MacsReport)

    def __init__(self, objective: Objective = CrossEntropy(), load: Load = NoLoad()) -> None:
        super().__init__(objective)
        self.load = load
        self.highest_cost = 0

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._sampler = path_sampler(self._supernet, task.arch, task.limits, task.unsupported, task.tier)
        macs = self._supernet.path_costs("macs")
        self._macs_fixed = macs.base(task.arch.labels)
        self._macs_of = macs.held(task.arch)
        self._task = task
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self._step = 0
        self._examples: Counter[str] = Counter()
        self._macs = 0
        self.highest_cost = 0
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        free = self.load.free(self._task.round, self._step, self._rng)
        path, cost = self._sampler.sample(self._rng, free)
        assert cost <= self._sampler.most, "a path over the client's budget"
        cast(PathNetwork, network).path = path
        loss = self.objective.loss(network, inputs, targets)
        self._step += 1
        self.highest_cost = max(self.highest_cost, cost)
        macs = self._macs_fixed
        for layer, name in enumerate(path):
            self._examples[f"layers.{layer}.{name}"] += len(targets)
            macs += self._macs_of[layer][name]
        self._macs += macs * len(targets)
        return loss

    @override
    def report(self) -> tuple[Report, ...]:
        return (OperatorReport(dict(self._examples)), MacsReport(self._macs), *super().report())
