"""Instances of every aggregation for the contract tests; a test fails if an aggregation has no instance."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from lit_fednas.aggregation import Aggregation, ClassAverage, MaxNet, OperatorAverage, OverlapAverage
from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate, OperatorStatistics
from lit_fednas.supernets import Ladder, NestedSupernet, Region

INSTANCES: dict[str, Callable[[], Aggregation]] = {
    "classes": ClassAverage,
    "classes-alike": lambda: ClassAverage(weighted=False),
    "maxnet": MaxNet,
    "maxnet-alike": lambda: MaxNet(0.5, weighted=False),
    "operators": OperatorAverage,
    "operators-alone": lambda: OperatorAverage(min_clients=1),
    "classes-median": lambda: ClassAverage(trim=0.5),
    "maxnet-trimmed": lambda: MaxNet(trim=0.3),
    "operators-trimmed": lambda: OperatorAverage(trim=0.2),
    "overlap": OverlapAverage,
    "overlap-median": lambda: OverlapAverage(trim=0.5),
    "overlap-alike": lambda: OverlapAverage(weighted=False),
}


class Vector(NestedSupernet):
    """Four shared numbers; an architecture has a range of them."""

    def __init__(self) -> None:
        super().__init__((1,), 1)
        self.space = Ladder([(0, 2), (0, 4)])
        self.network = nn.ParameterDict({"w": torch.tensor([10.0, 20.0, 30.0, 40.0])})

    def build(self, arch: tuple[int, int]) -> nn.Module:
        return nn.ParameterDict({"w": torch.zeros(arch[1] - arch[0])})

    def index(self, arch: tuple[int, int]) -> dict[str, Region]:
        return {"w": Region("network.w", None if arch == (0, 4) else (slice(*arch),))}


def vector_update(client: int, arch: tuple[int, int], examples: int, *values: float) -> ClientUpdate:
    """Returns a client's update of a vector, with a value per number, or one value for all numbers."""
    task, statistics = ClientTask(0, client, arch, examples), (OperatorStatistics({}),)
    result = ClientResult(task, num_seen=examples, statistics=statistics)
    return ClientUpdate(result, {"w": torch.tensor(values).expand(arch[1] - arch[0]).clone()})
