"""SuperFed's Algorithms 1 and 2 and its tracking sandwich, short and slow, from the paper alone.

Weights are dictionaries of tensors. ``M(W0, arch, w)`` is written out: a tensor of zeros as large as the
supernet's, with the subnet's weights put into their place. What is held is known from the same with ones.
All sums are in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
#: Puts a subnet's weights into a dictionary of zeros: M(W0, arch, w).
Impose = Callable[[dict[str, Tensor], object, Weights], None]


def corners(zeros: dict[str, Tensor], arch: object, w: Weights) -> None:
    """App. F: a subnet has the first channels of the first blocks; the supernet's names begin with network."""
    for name, tensor in w.items():
        target = zeros["network." + name]
        if tensor.ndim == 0:
            target.copy_(tensor)
        else:
            target[tuple(slice(0, size) for size in tensor.shape)] = tensor.double()


def padded(W: Weights, impose: Impose, arch: object, w: Weights) -> dict[str, Tensor]:
    """M(W0, arch, w) with W0 = zeros(W)."""
    zeros = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in W.items()}
    impose(zeros, arch, w)
    return zeros


def weighted_overlap(
    W: Weights, archs: Sequence[object], ws: Sequence[Weights], factors: Sequence[float], impose: Impose
) -> dict[str, Tensor]:
    """W_sum / W_cnt for any factor per client; where no client holds an element, W_sum is W and W_cnt is 1."""
    W_sum = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in W.items()}
    W_cnt = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in W.items()}
    held = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in W.items()}
    for arch, w, factor in zip(archs, ws, factors, strict=True):
        values = padded(W, impose, arch, w)
        ones = padded(W, impose, arch, {name: torch.ones_like(tensor) for name, tensor in w.items()})
        for name in W:
            W_sum[name] += factor * values[name]
            W_cnt[name] += factor * ones[name]
            held[name] |= ones[name] == 1
    result = {}
    for name in W:
        W_sum[name][~held[name]] = W[name].double()[~held[name]]
        W_cnt[name][~held[name]] = 1
        result[name] = W_sum[name] / W_cnt[name]
    return result


def algorithm_1(
    W: Weights,
    archs: Sequence[object],
    ws: Sequence[Weights],
    n: Sequence[float],
    impose: Impose = corners,
) -> dict[str, Tensor]:
    """Lines 9 to 15: averaging by overlap cardinality."""
    return weighted_overlap(W, archs, ws, n, impose)


def algorithm_2(
    W: Weights,
    archs: Sequence[object],
    ws: Sequence[Weights],
    n: Sequence[float],
    j: int,
    beta: float,
    impose: Impose = corners,
) -> dict[str, Tensor]:
    """Lines 3 to 10: client j has trained the largest subnetwork."""
    S = len(archs)
    factors = [beta * n[k] if k == j else (1 - beta) / (S - 1) * n[k] for k in range(S)]
    return weighted_overlap(W, archs, ws, factors, impose)


def least_seen(counts: Mapping[int, int], clients: Sequence[int]) -> set[int]:
    """Section 2.4: those of the clients that have been given an architecture the least often."""
    fewest = min(counts[client] for client in clients)
    return {client for client in clients if counts[client] == fewest}
