"""The contract of all partitioners, and the partition that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import numpy_generator

#: Natural groupings of the examples by name, each [N].
Columns = Mapping[str, np.ndarray]
#: The rows of each client.
Rows = list[np.ndarray]


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint sets of rows, one per client.

    Attributes:
        indices: The rows of each client, int64.
        num_examples: The size of the data set that the rows index.

    Raises:
        DataError: A row is out of range or belongs to two clients.

    Example:
        >>> partition = Partition((np.array([0, 3]), np.array([1])), num_examples=4)
        >>> partition.sizes, partition.class_counts(np.array([0, 1, 1, 0]), 2).tolist()
        ((2, 1), [[2, 0], [0, 1]])
    """

    indices: tuple[np.ndarray, ...]
    num_examples: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(np.asarray(rows, dtype=np.int64) for rows in self.indices))
        owner = np.full(self.num_examples, -1)
        for client, rows in enumerate(self.indices):
            if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < self.num_examples):
                raise DataError(f"indices: client {client} has rows outside 0..{self.num_examples - 1}; correct it")
            if (owner[rows] >= 0).any() or len(np.unique(rows)) < len(rows):
                row = next(int(r) for r in rows if owner[r] >= 0 or (rows == r).sum() > 1)
                raise DataError(f"indices: row {row} of client {client} is duplicated; give each row once")
            owner[rows] = client

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of examples of each client."""
        return tuple(len(rows) for rows in self.indices)

    def class_counts(self, targets: np.ndarray, num_classes: int) -> np.ndarray:
        """Counts examples per client and class: int64 [clients, classes]."""
        counts = [np.bincount(targets[rows], minlength=num_classes) for rows in self.indices]
        return np.stack(counts) if counts else np.zeros((0, num_classes), dtype=np.int64)


class Partitioner(ABC):
    """Deals all examples out to clients, as a pure function of its settings and a seed.

    To add one, subclass this, return each client's rows from ``split``, and export it from
    ``lit_fednas.data.partitioners``. ``partition`` validates that every example goes to exactly one client, and
    that no client is empty. A partitioner that leaves examples out sets ``deals_all`` to False; one that needs
    classes sets ``by_class`` to True.
    """

    deals_all: bool = True
    by_class: bool = False

    @abstractmethod
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> Rows:
        """Returns the rows of each client.

        Args:
            targets: The class of each example [N].
            num_clients: At least 1, at most N.
            rng: The only source of randomness.
            columns: Natural groupings.

        Raises:
            ConfigError: The data lack what the partitioner needs.
            DataError: The examples cannot be split so.
        """

    def default_num_clients(self, columns: Columns) -> int:
        """Returns the number of clients where none was given.

        Raises:
            ConfigError: The partitioner cannot derive it from the data; most cannot.
        """
        raise ConfigError(f"data.num_clients: null does not suit {type(self).__name__}; give 1 or more")

    def partition(
        self, targets: np.ndarray, num_clients: int | None, seed: int = 0, columns: Columns | None = None
    ) -> Partition:
        """Partitions the examples and checks the result.

        Args:
            targets: The class of each example [N].
            num_clients: None leaves the number to the partitioner.
            seed: The run's seed.
            columns: Natural groupings.

        Returns:
            The partition, each client's rows in ascending order.

        Raises:
            ConfigError: ``num_clients`` is below 1, or not given to a partitioner that needs it.
            DataError: Clients outnumber the examples, or the examples cannot be split so.
        """
        targets, columns = np.asarray(targets), columns or {}
        count = self.default_num_clients(columns) if num_clients is None else num_clients
        if count < 1:
            raise ConfigError(f"data.num_clients: {count} is not enough; give 1 or more")
        if count > len(targets):
            raise DataError(f"data.num_clients: {count} for {len(targets)} examples; give at most {len(targets)}")
        rows = self.split(targets, count, numpy_generator(seed, "partition"), columns)
        result = Partition(tuple(np.sort(part) for part in rows), len(targets))
        name, dealt = type(self).__name__, sum(result.sizes)
        if len(result) != count or (self.deals_all and dealt < len(targets)):
            raise DataError(
                f"{name}: dealt {dealt} of {len(targets)} examples to {len(result)} of {count} clients; its split "
                f"must deal each example once"
            )
        if 0 in result.sizes:
            raise DataError(f"{name}: client {result.sizes.index(0)} is empty; give fewer clients")
        return result
