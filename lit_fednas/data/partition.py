"""A partition: which examples belong to which client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fednas.errors import DataError


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint sets of rows, one per client.

    Attributes:
        indices: the rows of each client, int64.
        num_examples: the size of the data set that the rows index.

    Raises:
        DataError: a row is out of range or belongs to two clients.

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
                raise DataError(f"indices: client {client} has rows outside 0..{self.num_examples - 1}; mend them")
            if (owner[rows] >= 0).any() or len(np.unique(rows)) < len(rows):
                row = next(int(r) for r in rows if owner[r] >= 0 or (rows == r).sum() > 1)
                raise DataError(
                    f"indices: row {row} of client {client} is given twice; give each row to one client"
                )
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
