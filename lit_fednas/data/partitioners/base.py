"""The contract of all partitioners, and the partition that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from typing_extensions import override

from lit_fednas.data.rows import ClientRows, read_only
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import numpy_generator

#: Natural groupings of the examples by name, each [N].
Columns = Mapping[str, np.ndarray]
#: The owner of an example that is left out.
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Partition(ClientRows):
    """Disjoint sets of rows, one per client; a sequence of the clients' rows.

    Attributes:
        rows: The rows of the first client, then those of the second, and so on, int64.
        offsets: Where in ``rows`` each client's begin, and where the last one's end, int64 [clients + 1].
        num_examples: The size of the data set that the rows index.

    Raises:
        DataError: A row is out of range or belongs to two clients, or the offsets do not divide the rows.

    Example:
        >>> partition = Partition(np.array([0, 3, 1]), np.array([0, 2, 3]), num_examples=4)
        >>> [rows.tolist() for rows in partition], partition.sizes
        ([[0, 3], [1]], array([2, 1]))
        >>> partition.class_counts(np.array([0, 1, 1, 0]), 2).tolist()
        [[2, 0], [0, 1]]
    """

    rows: np.ndarray
    offsets: np.ndarray
    num_examples: int

    def __post_init__(self) -> None:
        for name in ("rows", "offsets"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        sizes = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.rows) or (sizes < 0).any():
            raise DataError(
                f"offsets: do not divide the {len(self.rows)} rows; begin with 0, ascend, end with their number"
            )
        object.__setattr__(self, "sizes", read_only(sizes))
        outside = (self.rows < 0) | (self.rows >= self.num_examples)
        if outside.any():
            client = self._owner(outside.argmax())
            raise DataError(f"indices: client {client} has rows outside 0..{self.num_examples - 1}; correct it")
        seen = np.zeros(self.num_examples, dtype=bool)
        seen[self.rows] = True
        if np.count_nonzero(seen) < len(self.rows):
            order = np.argsort(self.rows, kind="stable")
            place = order[1:][np.diff(self.rows[order]) == 0].min()
            row, client = self.rows[place], self._owner(place)
            raise DataError(f"indices: row {row} of client {client} is duplicated; give each row once")

    @classmethod
    def by_owner(cls, owners: np.ndarray, num_clients: int) -> Partition:
        """Returns the partition in which each row belongs to the client that is named for it; rows ascend.

        Args:
            owners: The client of each row, or ``-1`` if it belongs to none, int [N].
            num_clients: The number of clients.

        Example:
            >>> [rows.tolist() for rows in Partition.by_owner(np.array([1, 0, -1, 1]), 2)]
            [[1], [0, 3]]
        """
        sizes = np.bincount(owners + 1, minlength=num_clients + 1)  # first those of nobody
        rows = np.argsort(owners, kind="stable")[sizes[0] :]
        return cls(rows, np.cumsum(sizes) - sizes[0], len(owners))

    @override
    def of(self, client: int) -> np.ndarray:
        rows: np.ndarray = self.rows[self.offsets[client] : self.offsets[client + 1]]
        return rows

    def class_counts(self, targets: np.ndarray, num_classes: int) -> np.ndarray:
        """Counts examples per client and class.

        Args:
            targets: The class of each example [num_examples].
            num_classes: The length of each client's counts.

        Returns:
            int64 [clients, classes].

        Raises:
            DataError: A class is outside 0..num_classes - 1.
        """
        counts: np.ndarray = self.sparse_class_counts(targets, num_classes).toarray()
        return counts

    def sparse_class_counts(self, targets: np.ndarray, num_classes: int) -> csr_array:
        """Counts examples per client and class; what is not zero is at most as much as there are examples.

        Args:
            targets: The class of each example [num_examples].
            num_classes: The length of each client's counts.

        Returns:
            int64 [clients, classes].

        Raises:
            DataError: A class is outside 0..num_classes - 1.
        """
        classes = targets[self.rows]
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
            raise DataError(f"num_classes: {num_classes} for classes {classes.min()}..{classes.max()}; give more")
        ones = np.ones(len(classes), dtype=np.int64)
        counts = csr_array((ones, classes, self.offsets.copy()), shape=(len(self), num_classes))
        counts.sum_duplicates()
        return counts

    def _owner(self, place: np.integer) -> int:
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


class Partitioner(ABC):
    """Deals all examples out to clients, as a pure function of its settings and a seed.

    To add one, subclass this, return the client of each example from ``split``, and export it from
    ``lit_fednas.data.partitioners``. ``partition`` validates that every example goes to a client, and that no client
    is empty. A partitioner that leaves examples out sets ``deals_all`` to False; one that needs classes sets
    ``by_class`` to True.

    Example:
        >>> class TakeTurns(Partitioner):
        ...     def split(self, targets, num_clients, rng, columns):
        ...         return np.arange(len(targets)) % num_clients
        >>> [rows.tolist() for rows in TakeTurns().partition(np.zeros(5, dtype=int), num_clients=2)]
        [[0, 2, 4], [1, 3]]
    """

    deals_all: bool = True
    by_class: bool = False

    @abstractmethod
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        """Returns the client of each example.

        Args:
            targets: The class of each example [N].
            num_clients: At least 1, at most N.
            rng: The only source of randomness.
            columns: Natural groupings.

        Returns:
            Clients from 0 to ``num_clients - 1``, or ``-1`` where an example is left out, int [N].

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
        name = type(self).__name__
        owners = np.asarray(self.split(targets, count, numpy_generator(seed, "partition"), columns))
        if owners.shape != targets.shape[:1] or owners.dtype.kind not in "iu":
            raise DataError(
                f"{name}: its split returned {owners.dtype} {list(owners.shape)}; return the client of each of the "
                f"{len(targets)} examples, as integers"
            )
        if not NOBODY <= owners.min() <= owners.max() < count:
            raise DataError(
                f"{name}: dealt examples to clients {owners.min()}..{owners.max()}; its split must name clients "
                f"0..{count - 1}, or {NOBODY} for nobody"
            )
        result = Partition.by_owner(owners.astype(np.int64, copy=False), count)
        if self.deals_all and len(result.rows) < len(targets):
            raise DataError(
                f"{name}: dealt {len(result.rows)} of {len(targets)} examples; its split must deal each example, or "
                f"the class set deals_all to False"
            )
        if not result.sizes.all():
            raise DataError(f"{name}: client {result.sizes.argmin()} is empty; give fewer clients")
        return result
