"""Which rows belong to which client: partitions, each client's hold-outs, and those of the server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from typing_extensions import override

from lit_fednas.errors import DataError
from lit_fednas.rng import numpy_generator

#: The owner of an example that is left out.
NOBODY = -1
#: Clients whose splits are not drawn again; those of a round are asked for once per epoch.
_CLIENTS_KEPT = 64


class ClientRows(Sequence[np.ndarray]):
    """The rows of each client, as a sequence that need not hold an array per client."""

    #: The number of rows of each client, int64 [clients], read-only.
    sizes: np.ndarray

    @abstractmethod
    def rows_of(self, client: int) -> np.ndarray:
        """Returns the rows of a client, int64, which must not be written to."""

    @override
    def __len__(self) -> int:
        return len(self.sizes)

    @override
    def __getitem__(self, client: Any) -> Any:
        chosen = range(len(self))[client]
        return self.rows_of(chosen) if isinstance(chosen, int) else [self.rows_of(number) for number in chosen]


@dataclass(frozen=True, eq=False)
class Partition(ClientRows):
    """Disjoint sets of rows, one per client; a sequence of the clients' rows.

    Attributes:
        rows: The rows of the first client, then those of the second, and so on, int64.
        offsets: Where in ``rows`` each client's begin, and where the last one's end, int64 [clients + 1].

    Example:
        >>> partition = Partition(np.array([0, 3, 1]), np.array([0, 2, 3]))
        >>> [rows.tolist() for rows in partition], partition.sizes
        ([[0, 3], [1]], array([2, 1]))
        >>> partition.class_counts(np.array([0, 1, 1, 0]), 2).tolist()
        [[2, 0], [0, 1]]
    """

    rows: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        sizes = np.diff(self.offsets)
        sizes.flags.writeable = False
        object.__setattr__(self, "sizes", sizes)

    @classmethod
    def by_owner(cls, owners: np.ndarray, num_clients: int) -> Partition:
        """Returns the partition, rows ascending, by the client of each row, or ``-1`` for none, int64 [N]."""
        sizes = np.bincount(owners + 1, minlength=num_clients + 1)  # first those of nobody
        rows = np.argsort(owners, kind="stable")[sizes[0] :]
        return cls(rows, np.cumsum(sizes) - sizes[0])

    @override
    def rows_of(self, client: int) -> np.ndarray:
        rows: np.ndarray = self.rows[self.offsets[client] : self.offsets[client + 1]]
        return rows

    def class_counts(self, targets: np.ndarray, num_classes: int) -> np.ndarray:
        """Returns the dense array of :meth:`sparse_class_counts`."""
        counts: np.ndarray = self.sparse_class_counts(targets, num_classes).toarray()
        return counts

    def sparse_class_counts(self, targets: np.ndarray, num_classes: int) -> csr_array:
        """Returns the number of examples per client and class, int64 [clients, num_classes], by targets [N]."""
        classes = targets[self.rows]
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
            raise DataError(f"num_classes: {num_classes} for classes {classes.min()}..{classes.max()}; give more")
        ones = np.ones(len(classes), dtype=np.int64)
        counts = csr_array((ones, classes, self.offsets.copy()), shape=(len(self), num_classes))
        counts.sum_duplicates()
        return counts


def stratified_rows(targets: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns ``count`` rows, ascending, drawn so that class shares are kept to within one example."""
    classes, sizes = np.unique(targets, return_counts=True)
    share = sizes * count / max(1, len(targets))
    quota = np.floor(share).astype(int)
    largest_remainders = np.argsort(quota - share, kind="stable")
    quota[largest_remainders[: count - quota.sum()]] += 1
    drawn = [
        rng.permutation(np.flatnonzero(targets == label))[:number] for label, number in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)


class HoldOuts:
    """Every client's rows, split at random into ``train``, ``val`` and ``test`` by shares, to the nearest number.

    Sizes are known up front (that of ``train`` is below 1 where nothing remains); rows are drawn when a client is asked
    for, from a generator of its own, and those of some clients are kept.
    """

    def __init__(self, rows: ClientRows, val: float, test: float, seed: int, first: int = 0) -> None:
        self.rows = rows
        self.seed = seed
        self.first = first
        held = {"val": np.rint(val * rows.sizes).astype(np.int64), "test": np.rint(test * rows.sizes).astype(np.int64)}
        self.sizes = {"train": rows.sizes - held["val"] - held["test"], **held}
        for sizes in self.sizes.values():
            sizes.flags.writeable = False
        self._drawn: dict[int, dict[str, np.ndarray]] = {}

    def splits(self) -> dict[str, ClientRows]:
        """Returns the rows of each split."""
        return {split: _Split(self, split) for split in self.sizes}

    def rows_of(self, client: int) -> dict[str, np.ndarray]:
        """Returns the rows of each of a client's splits, ascending."""
        if client not in self._drawn:
            if len(self._drawn) >= _CLIENTS_KEPT:
                del self._drawn[next(iter(self._drawn))]
            order = numpy_generator(self.seed, "client-split", self.first + client).permutation(self.rows[client])
            num_val, num_test = self.sizes["val"][client], self.sizes["test"][client]
            parts = np.split(order, [num_val, num_val + num_test])
            self._drawn[client] = dict(zip(("val", "test", "train"), map(np.sort, parts), strict=True))
        return self._drawn[client]


class _Split(ClientRows):
    """One split of all clients."""

    def __init__(self, holdouts: HoldOuts, split: str) -> None:
        self.sizes = holdouts.sizes[split]
        self._holdouts = holdouts
        self._split = split

    @override
    def rows_of(self, client: int) -> np.ndarray:
        return self._holdouts.rows_of(client)[self._split]


def deal_by_class(targets: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Returns the rows of each class, dealt out in proportion to ``counts``, int [clients, classes], to within one."""
    owners = np.full(len(targets), NOBODY)
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(targets == label))
        order = rng.permutation(len(counts))  # whose proportions are rounded up is drawn anew for every class
        ends = counts[order, label].cumsum() / counts[:, label].sum() * len(rows)
        owners[rows] = np.repeat(order, np.diff(ends.round().astype(np.int64), prepend=0))
    return Partition.by_owner(owners, len(counts))
