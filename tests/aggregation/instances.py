"""One instance or several of every aggregation: what the contract's tests run over.

A new aggregation needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lit_fednas.aggregation import Aggregation, ClassAverage, MaxNet, OperatorAverage, OverlapAverage
from lit_fednas.messages import ClientUpdate

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


def archs_of(updates: Sequence[ClientUpdate]) -> list:
    return [u.task.arch for u in updates]


def weights_of(updates: Sequence[ClientUpdate]) -> list:
    return [u.weights for u in updates]


def examples_of(updates: Sequence[ClientUpdate]) -> np.ndarray:
    return np.array([u.task.num_examples for u in updates], dtype=float)
