"""Hold-outs: rows set aside for validation and test, on the server and at each client."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import NOBODY, Partition
from lit_fednas.data.rows import ClientRows
from lit_fednas.errors import DataError
from lit_fednas.rng import numpy_generator

#: Clients whose splits are not drawn again; those of a round are asked for once per epoch.
_CLIENTS_KEPT = 64


def stratified_rows(targets: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws ``count`` rows that keep the class shares, to within one example per class.

    Each class gives the floor of its share; the rest comes from the classes with the largest remainders.

    Args:
        targets: The class of each row.
        count: How many rows to draw.
        rng: The source of randomness.

    Returns:
        Rows, ascending.

    Raises:
        DataError: Fewer than ``count`` rows exist.

    Example:
        >>> rows = stratified_rows(np.repeat([0, 1], [60, 40]), 10, np.random.default_rng(0))
        >>> (rows < 60).sum(), (rows >= 60).sum()
        (np.int64(6), np.int64(4))
    """
    if count > len(targets):
        raise DataError(f"hold-out: {count} of {len(targets)} examples cannot be drawn; ask for fewer")
    classes, sizes = np.unique(targets, return_counts=True)
    share = sizes * count / max(1, len(targets))
    quota = np.floor(share).astype(int)
    order = np.argsort(quota - share, kind="stable")
    quota[order[: count - quota.sum()]] += 1
    drawn = [
        rng.permutation(np.flatnonzero(targets == label))[:number] for label, number in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=np.int64)


class HoldOuts:
    """Every client's rows, split at random into ``train``, ``val`` and ``test``.

    How many rows each split has follows from the numbers alone. Which ones is drawn when a client is asked for, from
    a generator of its own, so that it does not matter when that is; those of some clients are kept.

    Args:
        rows: The clients' rows.
        val: The share of ``val``, to the nearest number of rows.
        test: The share of ``test``.
        seed: The run's seed.
        first: The number of the first client.

    Attributes:
        sizes: The number of rows of each client, by split; below 1 for ``train`` where nothing remains.

    Example:
        >>> holdouts = HoldOuts(Partition(np.arange(15), np.array([0, 10, 15]), 15), 0.2, 0.1, seed=0)
        >>> {name: rows.sizes.tolist() for name, rows in holdouts.splits().items()}
        {'train': [7, 4], 'val': [2, 1], 'test': [1, 0]}
    """

    def __init__(self, rows: ClientRows, val: float, test: float, seed: int, first: int = 0) -> None:
        self.rows = rows
        self.seed = seed
        self.first = first
        held = {"val": np.rint(val * rows.sizes).astype(np.int64), "test": np.rint(test * rows.sizes).astype(np.int64)}
        self.sizes = {"train": rows.sizes - held["val"] - held["test"], **held}
        self._drawn: dict[int, dict[str, np.ndarray]] = {}

    def splits(self) -> dict[str, ClientRows]:
        """Returns the rows of each split."""
        return {split: _Split(self, split) for split in self.sizes}

    def of(self, client: int) -> dict[str, np.ndarray]:
        """Returns the rows of each of a client's splits, ascending."""
        if client not in self._drawn:
            if len(self._drawn) >= _CLIENTS_KEPT:
                del self._drawn[next(iter(self._drawn))]
            order = numpy_generator(self.seed, "client-split", self.first + client).permutation(self.rows.of(client))
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
    def of(self, client: int) -> np.ndarray:
        return self._holdouts.of(client)[self._split]


def deal_by_class(targets: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Partition:
    """Deals rows out to clients, each class in proportion to what they have of it.

    Which clients get the rows that remain when proportions are rounded is drawn anew for every class.

    Args:
        targets: The class of each row.
        counts: Examples that the clients have of each class, ``[clients, classes]``.
        rng: The source of randomness.

    Returns:
        Each client's rows, ascending: of every class its proportion to within one. No row is dealt twice, and those
        of classes that no client has are left out.

    Example:
        >>> rows = deal_by_class(np.repeat([0, 1], 6), np.array([[10, 5], [20, 0]]), np.random.default_rng(0))
        >>> [np.bincount(part // 6, minlength=2).tolist() for part in rows]
        [[2, 6], [4, 0]]
    """
    owners = np.full(len(targets), NOBODY)
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(targets == label))
        order = rng.permutation(len(counts))
        ends = counts[order, label].cumsum() / counts[:, label].sum() * len(rows)
        owners[rows] = np.repeat(order, np.diff(ends.round().astype(np.int64), prepend=0))
    return Partition.by_owner(owners, len(counts))
