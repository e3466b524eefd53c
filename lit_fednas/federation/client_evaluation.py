"""The accuracy of a network on single clients' own data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lit_fednas.data import ClientData
from lit_fednas.federation.evaluation import EvaluationSettings
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
    data: ClientData,
    clients: Sequence[int],
    split: str = "test",
    settings: EvaluationSettings = EvaluationSettings(),
    batch_size: int = 512,
    targets: Callable[[Tensor], Tensor] = lambda classes: classes,
    shuffle: torch.Generator | None = None,
) -> list[ClientScore]:
    """Evaluates a network on clients' own splits, without training, in one batch for several clients.

    Args:
        network: In evaluation mode, on the device of the data. The examples of a batch must not change the
            network's output for each other (:func:`normalises_over_batches`), unless there is one client.
        data: All clients' data.
        clients: The clients to evaluate on; those without examples are left out.
        split: ``val`` or ``test``.
        settings: Precision, layout, top-k.
        batch_size: Examples per batch, where one client has more.
        targets: The labels that the network is to predict, given classes ``[batch]`` (``Supernet.targets``).
        shuffle: Draws the order of examples; without it, it is that of the data.

    Returns:
        One score per client that has examples.
    """
    clients = [client for client in clients if data.size(client, split)]
    if not clients:
        return []
    draws = shuffle or generator(0, "evaluation")
    batches: Iterable[tuple[Tensor, Tensor]] = (
        batch
        for client in clients
        for batch in data.batches(client, batch_size, draws, split=split, shuffle=shuffle is not None, augment=False)
    )
    if len(clients) > 1:
        inputs, classes = zip(*batches, strict=True)
        batches = [(torch.cat(inputs), torch.cat(classes))]
    hits, losses = [], []
    for x, y in batches:
        correct, loss = answers(settings.logits(network, x), targets(y), settings.top_k)
        hits.append(correct)
        losses.append(loss)
    sizes = [data.size(client, split) for client in clients]
    parts = zip(torch.cat(hits).cpu().split(sizes), torch.cat(losses).double().cpu().split(sizes), strict=True)
    return [
        ClientScore(client, size, int(correct.sum()) / size, float(loss.sum()) / size)
        for client, size, (correct, loss) in zip(clients, sizes, parts, strict=True)
    ]


def answers(logits: Tensor, targets: Tensor, top_k: int = 1) -> tuple[Tensor, Tensor]:
    """Compares logits with targets.

    Args:
        logits: ``[batch, labels]``.
        targets: ``[batch]``.
        top_k: A target among so many most likely labels counts as correct.

    Returns:
        Which examples are correct, and the cross-entropy of each; both ``[batch]``.
    """
    losses = functional.cross_entropy(logits, targets, reduction="none")
    if top_k == 1:
        return logits.argmax(1) == targets, losses
    likeliest = logits.topk(min(top_k, logits.shape[1])).indices
    return (likeliest == targets[:, None]).any(1), losses


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


def normalises_over_batches(network: nn.Module) -> bool:
    """Returns whether a network's output for an example depends on its batch, in evaluation mode too.

    Example:
        >>> normalises_over_batches(nn.BatchNorm2d(1)), normalises_over_batches(nn.BatchNorm2d(1, affine=False,
        ...     track_running_stats=False))
        (False, True)
    """
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in network.modules())
