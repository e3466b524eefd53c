"""How good a network is for single clients, on their own data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

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


def batches_of_clients(sizes: Mapping[int, int], batch_size: int) -> list[list[int]]:
    """Puts clients together, in their order, whose examples fit in one batch.

    Args:
        sizes: Examples of each client; those with none are left out.
        batch_size: Examples of a batch; a client with more stands alone.

    Example:
        >>> batches_of_clients({4: 3, 7: 5, 1: 0, 2: 1, 0: 20}, batch_size=8)
        [[4, 7], [2], [0]]
    """
    found: list[list[int]] = []
    room = 0
    for client, size in sizes.items():
        if size == 0:
            continue
        if not found or size > room:
            found.append([])
            room = batch_size
        found[-1].append(client)
        room -= size
    return found


def normalises_over_batches(network: nn.Module) -> bool:
    """Whether the examples of a batch change what a network says of each other, in evaluation mode too.

    Example:
        >>> normalises_over_batches(nn.BatchNorm2d(1)), normalises_over_batches(nn.BatchNorm2d(1, affine=False,
        ...     track_running_stats=False))
        (False, True)
    """
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in network.modules())


@torch.no_grad()
def joint_client_scores(
    network: Callable[[Tensor], Tensor],
    clients: ClientData,
    those: Sequence[int],
    split: str = "test",
    settings: EvaluationSettings = EvaluationSettings(),
    batch_size: int = 512,
    labels: Callable[[Tensor], Tensor] = lambda classes: classes,
) -> list[ClientScore]:
    """Like :func:`client_scores`, in one batch for all of the clients: much faster where each has few examples.

    Args:
        network: In evaluation mode, on the device of the data; one that normalises over batches says something
            else of a client's examples here.
        clients: All clients' data.
        those: The clients, each with examples, of :func:`batches_of_clients`.
        split: ``val`` or ``test``.
        settings: Precision, layout, top-k.
        batch_size: Examples per batch, where one client has more.
        labels: What the network is to say of examples, given their classes (``Supernet.targets``).
    """
    draws = generator(0, "evaluation")  # nothing is drawn: no shuffling, no augmentation
    batches: Iterable[tuple[Tensor, Tensor]] = (
        batch
        for client in those
        for batch in clients.batches(client, batch_size, draws, split=split, shuffle=False, augment=False)
    )
    if len(those) > 1:
        inputs, targets = zip(*batches, strict=True)
        batches = [(torch.cat(inputs), torch.cat(targets))]
    right, losses = [], []
    for x, classes in batches:
        logits, y = settings.logits(network, x), labels(classes)
        right.append(_right(logits, y, settings.top_k))
        losses.append(functional.cross_entropy(logits, y, reduction="none").double())
    sizes = [clients.size(client, split) for client in those]
    parts = zip(torch.cat(right).cpu().split(sizes), torch.cat(losses).cpu().split(sizes), strict=True)
    return [
        ClientScore(client, size, int(hits.sum()) / size, float(loss.sum()) / size)
        for client, size, (hits, loss) in zip(those, sizes, parts, strict=True)
    ]


def _right(logits: Tensor, targets: Tensor, top_k: int) -> Tensor:
    """Which examples are right, ``[batch]``."""
    if top_k == 1:
        return logits.argmax(1) == targets
    likeliest = logits.topk(min(top_k, logits.shape[1])).indices
    return (likeliest == targets[:, None]).any(1)
