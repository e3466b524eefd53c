"""One instance or several of every aggregation: what the contract's tests run over.

A new aggregation needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fednas.aggregation import Aggregation, ClassAverage, MaxNet, OperatorAverage, OverlapAverage
from lit_fednas.messages import ClassesReport, ClientResult, ClientTask, ClientUpdate, OperatorReport, RoundValues
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet

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

#: The classifiers of supernets that do not call theirs ``classifier``.
CLASSIFIERS = {"PlainNetwork": "4", "RollingNet": "4"}


def suited(aggregation: Aggregation, net: Supernet) -> Aggregation:
    """The aggregation, told where this supernet has its classifier if it needs to know."""
    if isinstance(aggregation, ClassAverage):
        aggregation.classifier = CLASSIFIERS.get(type(net).__name__, "classifier")
    return aggregation


def update(net: Supernet, client: int, arch: object, examples: int, seed: int = 0) -> ClientUpdate:
    """A client's update with random weights, one in five of them exactly zero, and counters from 0 to 99.

    Client 0 reports to have all classes, every other one lacks each third; no network has operators to choose.
    """
    draws = generator(seed, "update", client)

    def trained(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.randint(0, 100, tensor.shape, generator=draws)
        values = torch.randn(tensor.shape, generator=draws)
        return values * (torch.rand(tensor.shape, generator=draws) > 0.2)

    network = net.skeleton(arch)
    weights = {name: trained(tensor) for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
    task = ClientTask(round=0, client=client, arch=arch, num_examples=examples)
    classes = [number for number in range(net.num_classes) if client == 0 or (number + client) % 3]
    reports = (ClassesReport(classes), OperatorReport({}))
    return ClientUpdate(ClientResult(task, num_steps=1, num_seen=examples, loss=0.0, reports=reports), weights)


def changed(one: ClientUpdate, **settings: Any) -> ClientUpdate:
    """The update with another result."""
    return replace(one, result=replace(one.result, **settings))


def random_updates(net: Supernet, size: int, largest: bool, seed: int) -> list[ClientUpdate]:
    """A cohort of random architectures and numbers of examples; one has the largest, if asked."""
    rng = numpy_generator(seed, "cohort")
    archs = [net.space.sample(rng) for _ in range(size)]
    if largest:
        archs[int(rng.integers(size))] = net.space.largest
    clients = rng.permutation(3 * size)[:size]
    return [
        update(net, int(client), arch, int(rng.integers(1, 500)), seed)
        for client, arch in zip(clients, archs, strict=True)
    ]


def start(aggregation: Aggregation, net: Supernet, tasks: Sequence[ClientTask], **settings: Any) -> None:
    """Begins a round; the aggregation is set up once for a supernet, as in a run."""
    if getattr(aggregation, "_supernet", None) is not net:
        aggregation.setup(net)
    aggregation.start(tasks, **settings)


def aggregate(
    aggregation: Aggregation,
    net: Supernet,
    updates: Sequence[ClientUpdate],
    tasks: Sequence[ClientTask] | None = None,
    rejected: Sequence[Any] = (),
    values: RoundValues | None = None,
    by_architecture: bool = False,
) -> dict[str, Tensor]:
    """One round; ``tasks`` if more were asked than have answered."""
    tasks = [u.task for u in updates] if tasks is None else tasks
    start(aggregation, net, tasks, values=values, by_architecture=by_architecture)
    for one in updates:
        aggregation.add(one)
    return aggregation.finish(rejected)


def archs_of(updates: Sequence[ClientUpdate]) -> list:
    return [u.task.arch for u in updates]


def weights_of(updates: Sequence[ClientUpdate]) -> list:
    return [u.weights for u in updates]


def examples_of(updates: Sequence[ClientUpdate]) -> np.ndarray:
    return np.array([u.task.num_examples for u in updates], dtype=float)
