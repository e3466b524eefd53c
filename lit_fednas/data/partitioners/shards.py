"""Partitions into equal parts: of shuffled examples, or of examples that are sorted by class."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import Columns, Partitioner, Rows
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveInt, checked


class IID(Partitioner):
    """Deals the shuffled examples out in sizes that differ by at most one.

    Example:
        >>> IID().partition(np.zeros(7, dtype=int), num_clients=3).sizes
        (3, 2, 2)
    """

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> Rows:
        return np.array_split(rng.permutation(len(targets)), num_clients)


@checked("data.partitioner")
class Shards(Partitioner):
    """Sorts the examples by class, cuts them into equal shards and gives each client some at random.

    The pathological non-IID partition of McMahan et al. (2017), section 3.

    Args:
        shards_per_client: 2 gives most clients two classes.

    Raises:
        ConfigError: ``shards_per_client`` is below 1.

    Example:
        >>> targets = np.repeat(np.arange(10), 100)
        >>> partition = Shards(2).partition(targets, num_clients=10)
        >>> int((partition.class_counts(targets, 10) > 0).sum(axis=1).max())
        2
    """

    by_class = True

    def __init__(self, shards_per_client: PositiveInt = 2) -> None:
        self.shards_per_client = shards_per_client

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> Rows:
        count = num_clients * self.shards_per_client
        if count > len(targets):
            raise DataError(
                f"data.partitioner.shards_per_client: {self.shards_per_client} for {num_clients} clients is more than "
                f"the {len(targets)} examples; give {len(targets) // num_clients} or less"
            )
        order = rng.permutation(len(targets))
        shards = np.array_split(order[np.argsort(targets[order], kind="stable")], count)
        dealt = rng.permutation(count).reshape(num_clients, -1)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]
