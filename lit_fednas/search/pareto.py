"""Pareto fronts of a metric against cost, and what they dominate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from pymoo.indicators.hv import Hypervolume
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting


def pareto_front(costs: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Returns the indices of the non-dominated points, by ascending cost; of equal points the first.

    A point is dominated if another costs no more, scores no less, and is better in one of the two.

    Args:
        costs: ``[n]``, less is better.
        scores: ``[n]``, more is better.

    Example:
        >>> pareto_front([1, 2, 3, 2], [0.5, 0.4, 0.9, 0.7]).tolist()
        [0, 3, 2]
    """
    points = np.column_stack([np.asarray(costs, dtype=float), -np.asarray(scores, dtype=float)])
    if len(points) == 0:
        return np.empty(0, dtype=int)
    _, first = np.unique(points, axis=0, return_index=True)
    first = np.sort(first)
    front = first[NonDominatedSorting().do(points[first], only_non_dominated_front=True)]
    return front[np.argsort(points[front, 0], kind="stable")]


def hypervolume(costs: ArrayLike, scores: ArrayLike, reference: float) -> float:
    """Returns the share of the square (cost from 0 to a reference, score from 0 to 1) that the points dominate.

    Args:
        costs: ``[n]``.
        scores: ``[n]``, at most 1, such as accuracies; what is below 0 dominates nothing.
        reference: The cost at which a point dominates nothing: a tier's budget, or the largest architecture's.

    Returns:
        From 0 (nothing) to 1 (a point of no cost and score 1).

    Example:
        >>> round(hypervolume([1, 2], [0.5, 0.8], reference=4), 3)  # (4 - 1) * 0.5 / 4 + (4 - 2) * 0.3 / 4
        0.525
    """
    points = np.column_stack([np.asarray(costs, dtype=float) / reference, 1 - np.asarray(scores, dtype=float)])
    if len(points) == 0:
        return 0.0
    return float(Hypervolume(ref_point=np.array([1.0, 1.0])).do(points))
