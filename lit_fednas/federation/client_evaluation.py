"""A network's metrics on single clients' own data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fednas.data import ClientData, Task
from lit_fednas.federation.evaluation import EvaluationSettings
from lit_fednas.rng import generator


class ClientScore(NamedTuple):
    """A network on one client's examples: what the task averages over units, and all its metrics."""

    client: int
    num_examples: int
    num_units: int
    means: Mapping[str, float]
    metrics: Mapping[str, float]

    def row(self) -> dict[str, float]:
        """Returns a row of ``clients.csv``, without its tier."""
        return {"client": self.client, "num_examples": self.num_examples, **self.metrics}


@torch.no_grad()
def client_scores(
    network: Callable[[Tensor], Tensor],
    data: ClientData,
    clients: Sequence[int],
    split: str = "test",
    settings: EvaluationSettings = EvaluationSettings(),
    batch_size: int = 512,
    targets: Callable[[Tensor], Tensor] = lambda classes: classes,
) -> list[ClientScore]:
    """Evaluates a network on clients' own splits, without training, in one batch for several clients."""
    task = data.task
    clients = [client for client in clients if data.size(client, split)]
    if not clients:
        return []
    draws = generator(0, "evaluation")
    batches: Iterable[tuple[Tensor, Tensor]] = (
        batch
        for client in clients
        for batch in data.batches(client, batch_size, draws, split=split, shuffle=False, augment=False)
    )
    if len(clients) > 1:
        inputs, classes = zip(*batches, strict=True)
        batches = [(torch.cat(inputs), torch.cat(classes))]
    rows = []
    for x, y in batches:
        labels = targets(y)
        values = task.values(settings.logits(network, x), labels, settings.top_k)
        rows.append(torch.stack([task.units(labels).double(), *(values[name].double() for name in task.averaged)], 1))
    sizes = [data.size(client, split) for client in clients]
    scores = []
    for client, size, part in zip(clients, sizes, torch.cat(rows).cpu().split(sizes), strict=True):
        units, *sums = part.sum(0).tolist()
        means = {name: one / units if units else math.nan for name, one in zip(task.averaged, sums, strict=True)}
        scores.append(ClientScore(client, size, int(units), means, task.derived(means)))
    return scores


def pooled(scores: Iterable[ClientScore], task: Task) -> dict[str, float]:
    """Returns the task's metrics over the examples of several clients together; NaN where they have none.

    Example:
        >>> from lit_fednas.data import Classification
        >>> scores = [ClientScore(0, 1, 1, {"accuracy": 1.0, "loss": 0.0}, {}),
        ...     ClientScore(1, 4, 4, {"accuracy": 0.5, "loss": 1.0}, {})]
        >>> pooled(scores, Classification(2))
        {'accuracy': 0.6, 'loss': 0.8}
    """
    counted = [score for score in scores if score.num_units]
    units = sum(score.num_units for score in counted)
    sums = {name: sum(score.means[name] * score.num_units for score in counted) for name in task.averaged}
    return task.derived({name: one / units if units else math.nan for name, one in sums.items()})


def batches_of_clients(sizes: Mapping[int, int], batch_size: int) -> list[list[int]]:
    """Returns groups of clients, in their order, so that the examples of a group fit in one batch.

    Args:
        sizes: Examples of each client; those with none are left out.
        batch_size: Examples of a batch; a client with more is alone, so that with 1 all are.

    Example:
        >>> batches_of_clients({4: 3, 7: 5, 1: 0, 2: 1, 0: 20}, batch_size=8)
        [[4, 7], [2], [0]]
    """
    groups: list[list[int]] = []
    room = 0
    for client, size in sizes.items():
        if size == 0:
            continue
        if not groups or size > room:
            groups.append([])
            room = batch_size
        groups[-1].append(client)
        room -= size
    return groups
