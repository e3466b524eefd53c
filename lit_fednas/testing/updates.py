"""Random updates of clients, and rounds of an aggregation alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lit_fednas.aggregation import Aggregation
from lit_fednas.messages import (
    ClassesReport,
    ClientResult,
    ClientTask,
    ClientUpdate,
    OperatorReport,
    Report,
    RoundValues,
)
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet


def usual_reports(net: Supernet, client: int) -> tuple[Report, ...]:
    """Returns what the package's aggregations read.

    Client 0 reports to have all classes, every other one lacks each third; no network has operators to choose.
    """
    classes = [number for number in range(net.num_classes) if client == 0 or (number + client) % 3]
    return ClassesReport(classes), OperatorReport({})


def update(net: Supernet, client: int, arch: object, examples: int, seed: int = 0) -> ClientUpdate:
    """Returns a client's update with random weights, one in five of them exactly zero, and counters from 0 to 99."""
    draws = generator(seed, "update", client)

    def trained(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.randint(0, 100, tensor.shape, generator=draws)
        values = torch.randn(tensor.shape, generator=draws)
        return values * (torch.rand(tensor.shape, generator=draws) > 0.2)

    network = net.skeleton(arch)
    weights = {name: trained(tensor) for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
    task = ClientTask(round=0, client=client, arch=arch, num_examples=examples)
    result = ClientResult(task, num_steps=1, num_seen=examples, loss=0.0, reports=usual_reports(net, client))
    return ClientUpdate(result, weights)


def changed(one: ClientUpdate, **settings: Any) -> ClientUpdate:
    """Returns an update with another result."""
    return replace(one, result=replace(one.result, **settings))


def random_updates(net: Supernet, size: int, largest: bool, seed: int) -> list[ClientUpdate]:
    """Returns the updates of random architectures and numbers of examples; one is the largest, if asked."""
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
    """Returns the result of one round; ``tasks`` are given if more were asked than have answered."""
    tasks = [u.task for u in updates] if tasks is None else tasks
    start(aggregation, net, tasks, values=values, by_architecture=by_architecture)
    for one in updates:
        aggregation.add(one)
    return aggregation.finish(rejected)
