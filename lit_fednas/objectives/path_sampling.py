"""Client-side path sampling: FedorAS' local training (section 3.1, Eq. 2 to 4)."""

from collections import Counter
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientResult, ClientTask, MacsStatistics, OperatorStatistics, Statistics
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.objectives.wrapped import CountedObjective
from lit_fednas.ranges import UnitInterval, checked
from lit_fednas.supernets import PathSupernet, path_sampler
from lit_fednas.supernets.paths.supernet import PathNetwork


@checked("objective")
class PathSampling(CountedObjective):
    """Trains a new path for every batch, from the client's operators and within its limits.

    Operators off a batch's path get no gradient, so the local optimizer skips them in that step. The client sends
    its examples by operator (for :class:`~lit_fednas.aggregation.OperatorAverage`), and the multiply-accumulates.

    Args:
        objective: The loss on a path.
        least_free: The lowest share of the client's limits that other work on its device leaves free (section 3.1,
            "dynamic"), from 0 to 1. Each batch draws a share between it and 1; at 0 only the cheapest path may fit.

    Raises:
        ConfigError: A setting is out of range.
    """

    supernet_kind: ClassVar[type] = PathSupernet
    testable = False  # a client holds several paths; none of them is its network
    added_statistics: ClassVar[tuple[type[Statistics], ...]] = (OperatorStatistics, MacsStatistics)

    def __init__(self, objective: Objective = TaskLoss(), least_free: UnitInterval = 1.0) -> None:
        super().__init__(objective)
        self.least_free = least_free

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._sampler = path_sampler(self._supernet, task.arch, task.limits, task.unsupported, task.tier)
        macs = self._supernet.path_costs("macs")
        self._macs_fixed = macs.fixed
        self._macs_of = macs.operator_costs(task.arch)
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self._examples: Counter[str] = Counter()
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        free = 1.0 if self.least_free == 1 else float(self._rng.uniform(self.least_free, 1))
        path, cost = self._sampler.sample(self._rng, free)
        assert cost <= self._sampler.most, "a path over the client's limits"
        cast(PathNetwork, network).path = path
        loss = self.objective.loss(network, inputs, targets)
        self._examples.update({f"layers.{layer}.{name}": len(targets) for layer, name in enumerate(path)})
        layers = zip(self._macs_of, path, strict=True)
        self._macs += len(targets) * (self._macs_fixed + sum(macs[name] for macs, name in layers))
        return loss

    @override
    def statistics(self) -> tuple[Statistics, ...]:
        return (OperatorStatistics(dict(self._examples)), *super().statistics())

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        arch, seen, macs = result.task.arch, result.num_seen, self._supernet.path_costs("macs")
        statistics, total = result.find(OperatorStatistics), macs.fixed * seen
        examples = {} if statistics is None else dict(statistics.examples)
        for layer, costs in enumerate(macs.operator_costs(arch)):
            through = {name: examples.pop(f"layers.{layer}.{name}", 0) for name in costs}
            if sum(through.values()) != seen:
                raise ValueError(f"{sum(through.values())} examples passed layer {layer} instead of {seen}")
            total += sum(number * costs[name] for name, number in through.items())
        if examples:
            raise ValueError(f"{arch} has no operator {next(iter(examples))}")
        self.check_macs(result, total, total)
