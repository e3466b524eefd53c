"""Hold-outs: rows set aside for validation and test, on the server and at each client."""

from __future__ import annotations

import numpy as np

from lit_fednas.errors import DataError


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


def client_split(rows: np.ndarray, val: float, test: float, rng: np.random.Generator) -> dict[str, np.ndarray] | None:
    """Splits one client's rows at random into ``train``, ``val`` and ``test``.

    Args:
        rows: The client's rows.
        val: The share of ``val``, to the nearest number of rows.
        test: The share of ``test``.
        rng: The source of randomness.

    Returns:
        The rows of each split, ascending; None where no training example would remain.

    Example:
        >>> parts = client_split(np.arange(10), 0.2, 0.1, np.random.default_rng(0))
        >>> {name: len(part) for name, part in parts.items()}
        {'val': 2, 'test': 1, 'train': 7}
    """
    num_val, num_test = round(val * len(rows)), round(test * len(rows))
    if num_val + num_test >= len(rows):
        return None
    parts = np.split(rng.permutation(rows), [num_val, num_val + num_test])
    return {split: np.sort(part) for split, part in zip(("val", "test", "train"), parts, strict=True)}


def deal_by_class(targets: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
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
    dealt: list[list[np.ndarray]] = [[] for _ in counts]
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(targets == label))
        order = rng.permutation(len(counts))
        ends = counts[order, label].cumsum() / counts[:, label].sum() * len(rows)
        for client, part in zip(order, np.split(rows, ends.round().astype(int)[:-1]), strict=True):
            dealt[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]
