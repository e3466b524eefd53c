"""Partitions into equal parts: of shuffled examples, or of examples that are sorted by class."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import Columns, Partitioner
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveInt, checked


class IID(Partitioner):
    """Deals the shuffled examples out in sizes that differ by at most one.

    Example:
        >>> IID().partition(np.zeros(7, dtype=int), num_clients=3).sizes
        array([3, 2, 2])
    """

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        return equal_parts(rng.permutation(len(targets)), np.arange(num_clients))


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
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        count = num_clients * self.shards_per_client
        if count > len(targets):
            raise DataError(
                f"data.partitioner.shards_per_client: {self.shards_per_client} for {num_clients} clients is more than "
                f"the {len(targets)} examples; give {len(targets) // num_clients} or less"
            )
        order = rng.permutation(len(targets))
        order = order[np.argsort(targets[order], kind="stable")]
        client_of_shard = np.empty(count, dtype=np.int64)
        client_of_shard[rng.permutation(count)] = np.arange(count) // self.shards_per_client
        return equal_parts(order, client_of_shard)


def equal_parts(order: np.ndarray, owners_of_parts: np.ndarray) -> np.ndarray:
    """Cuts rows into consecutive parts whose sizes differ by at most one, the larger ones first.

    Args:
        order: All rows, in the order in which they are cut.
        owners_of_parts: The owner of each part.

    Returns:
        The owner of each row.

    Example:
        >>> equal_parts(np.array([4, 0, 2, 1, 3]), np.array([7, 8]))
        array([7, 8, 7, 8, 7])
    """
    parts = len(owners_of_parts)
    sizes = np.full(parts, len(order) // parts)
    sizes[: len(order) % parts] += 1
    owners = np.empty(len(order), dtype=np.int64)
    owners[order] = np.repeat(owners_of_parts, sizes)
    return owners
