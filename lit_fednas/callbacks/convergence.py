"""When training has slowed down: the degree of convergence (FedTrans, section 4.1, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt


def degree_of_convergence(losses: Sequence[float], gamma: int, delta: int) -> float | None:
    """The mean of the last ``gamma`` slopes of the loss, each over ``delta`` rounds.

    DoC = 1/gamma * sum over i of (L(i - delta) - L(i)) / delta, for i = the last round and the gamma - 1 before.
    The faster the loss falls, the greater it is. (Eq. 1 prints i from 1 to gamma, without a round to count from.)

    Args:
        losses: One per round, the last at the end.
        gamma: Number of slopes.
        delta: Rounds that a slope goes over.

    Returns:
        It, or ``None`` before there are gamma + delta losses.

    Example:
        >>> degree_of_convergence([3.0, 2.0, 1.5, 1.25], gamma=2, delta=2)  # (1.5 + 0.75) / 2 / 2
        0.5625
    """
    if len(losses) < gamma + delta:
        return None
    slopes = [(losses[-place - delta] - losses[-place]) / delta for place in range(1, gamma + 1)]
    return sum(slopes) / gamma


def standard_error(losses: Sequence[float], gamma: int, delta: int) -> float | None:
    """The standard error of the degree of convergence, if the losses are a trend and independent noise.

    In the sum of the slopes all losses but the first and the last min(gamma, delta) cancel out. The variance of the
    noise is half of that of the differences of successive losses (von Neumann, 1941).

    Args:
        losses: One per round, the last at the end.
        gamma: Number of slopes.
        delta: Rounds that a slope goes over.

    Returns:
        It, or ``None`` before there are gamma + delta losses.

    Example:
        >>> standard_error([3.0, 2.0, 1.0, 0.0], gamma=2, delta=2)
        0.0
        >>> round(standard_error([1.0, 0.0, 1.0, 0.0, 1.0], gamma=2, delta=3), 4)  # sqrt(1 / 2 * 2 * 2) / 2 / 3
        0.2357
    """
    if len(losses) < gamma + delta:
        return None
    window = losses[-gamma - delta :]
    steps = [after - before for before, after in pairwise(window)]
    mean = sum(steps) / len(steps)
    variance = sum((step - mean) ** 2 for step in steps) / len(steps) / 2
    return sqrt(variance * 2 * min(gamma, delta)) / gamma / delta
