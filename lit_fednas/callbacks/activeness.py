"""Which cells hold training back: their activeness (FedTrans, section 4.1, "Picking the right model Cell")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lit_fednas.supernets import ModelSuite


@torch.no_grad()
def cell_activeness(suite: ModelSuite, number: int, averages: Mapping[str, Tensor]) -> dict[str, float]:
    """Computes how much a round moves each cell of a model: the norm of the update over the norm of the weights.

    The update is the average of the clients' updates. Buffers do not count.

    Args:
        suite: With the weights that were sent.
        number: The model.
        averages: The averages of the clients' weights, by the suite's names.

    Returns:
        The activeness of each cell with parameters.
    """
    shared = dict(suite.named_parameters())
    squares: dict[str, list[Tensor]] = {}
    start = f"networks.{number}.cells."
    for name, weights in shared.items():
        if name.startswith(start):
            cell = name.removeprefix(start).partition(".")[0]
            moved = (averages[name] - weights).square().sum()
            squares.setdefault(cell, []).append(torch.stack([moved, weights.square().sum()]))
    activeness = {}
    for cell, pairs in squares.items():
        moved, present = torch.stack(pairs).double().sum(0).sqrt().tolist()
        activeness[cell] = moved / present if present > 0 else float("inf") if moved > 0 else 0.0
    return activeness


def mean_activeness(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over rounds, by cell.

    Example:
        >>> mean_activeness([{"conv1": 0.25, "head": 0.5}, {"conv1": 0.75, "head": 0.5}])
        {'conv1': 0.5, 'head': 0.5}
    """
    return {cell: sum(one[cell] for one in rounds) / len(rounds) for cell in rounds[0]} if rounds else {}


def most_active(activeness: Mapping[str, float], alpha: float) -> list[str]:
    """Returns the cells whose activeness is at least ``alpha`` times the largest, the most active first.

    Example:
        >>> most_active({"conv1": 0.5, "conv2": 1.0, "conv3": 0.95}, alpha=0.9)
        ['conv2', 'conv3']
    """
    if not activeness:
        return []
    largest = max(activeness.values())
    ranked = sorted(activeness, key=lambda cell: -activeness[cell])
    return [cell for cell in ranked if activeness[cell] >= alpha * largest]
