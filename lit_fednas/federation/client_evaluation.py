"""How good a network is for single clients, on their own data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fednas.data import ClientData
from lit_fednas.federation.evaluation import EvaluationSettings, SubnetMetrics
from lit_fednas.rng import generator


class ClientScore(NamedTuple):
    """A network on one client's examples."""

    client: int
    num_examples: int
    accuracy: float
    loss: float


@torch.no_grad()
def client_scores(
    network: Callable[[Tensor], Tensor],
    clients: ClientData,
    those: Iterable[int],
    num_classes: int,
    split: str = "test",
    settings: EvaluationSettings = EvaluationSettings(),
    batch_size: int = 512,
    labels: Callable[[Tensor], Tensor] = lambda classes: classes,
) -> Iterator[ClientScore]:
    """Evaluates a network on clients' own splits, without training; clients without examples are left out.

    Args:
        network: In evaluation mode, on the device of the data.
        clients: All clients' data.
        those: The clients to evaluate on.
        num_classes: Width of the network's output.
        split: ``val`` or ``test``.
        settings: Precision, layout, top-k.
        batch_size: Examples per batch, in the order of the data set.
        labels: What the network is to say of examples, given their classes (``Supernet.targets``).
    """
    metrics: SubnetMetrics | None = None
    for client in those:
        if clients.size(client, split) == 0:
            continue
        draws = generator(0, "evaluation")  # nothing is drawn: no shuffling, no augmentation
        for inputs, targets in clients.batches(
            client, batch_size, draws, split=split, shuffle=False, augment=False
        ):
            if metrics is None:
                metrics = SubnetMetrics(["client"], num_classes, settings.top_k).to(inputs.device)
            metrics.update(0, settings.logits(network, inputs), labels(targets))
        assert metrics is not None
        found = metrics.compute()
        count = clients.size(client, split)
        yield ClientScore(client, count, float(found["client/accuracy"]), float(found["client/loss"]))
