"""Natural partitions: by speaker, role, writer, site."""

from __future__ import annotations

import logging

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import NOBODY, Columns, Partitioner
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked

log = logging.getLogger(__name__)


@checked("data.partitioner")
class ByColumn(Partitioner):
    """Makes one client of each value of a column.

    With as many clients as values, client k holds the k-th value in sorted order; that is also what
    ``num_clients: null`` gives. With fewer clients, the values are shuffled by the seed and dealt out in
    turn, so that clients hold equally many values, give or take one, and a value is never divided.

    Values with few examples may be left out, as LEAF does with users of fewer than 5 images: a client of one
    example cannot hold any out for validation. They are counted after the server's hold-out; sources with natural
    clients have a ``least`` of their own, which counts before it, as published numbers of clients do.

    Args:
        column: The name of the column.
        least: Values with fewer examples are left out, and their examples go to no client.

    Raises:
        ConfigError: ``least`` is below 1; or, once the data are known, they lack the column.

    Example:
        >>> columns = {"speaker": np.array(["ann", "bob", "ann", "cat"])}
        >>> partition = ByColumn("speaker").partition(np.zeros(4, dtype=int), None, columns=columns)
        >>> [rows.tolist() for rows in partition]
        [[0, 2], [1], [3]]
    """

    def __init__(self, column: str, least: PositiveInt = 1) -> None:
        self.column = column
        self.least = least
        self.deals_all = least == 1

    @override
    def default_num_clients(self, columns: Columns) -> int:
        return len(self._kept(columns)[0])

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        values, rows, codes = self._kept(columns)
        if num_clients > len(values):
            few = f" with {self.least} examples or more" if self.least > 1 else ""
            raise DataError(
                f"data.num_clients: {num_clients} for {len(values)} values of {self.column!r}{few}; "
                f"give at most {len(values)}"
            )
        if len(rows) < len(targets):
            left = len(targets) - len(rows)
            log.info("least: %d examples of clients with fewer than %d are left out", left, self.least)
        client_of_value = np.arange(len(values))
        if num_clients < len(values):
            client_of_value = rng.permutation(len(values)) % num_clients
        owners = np.full(len(targets), NOBODY)
        owners[rows] = client_of_value[codes]
        return owners

    def _kept(self, columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the sorted values with enough examples, the rows that hold one of them, and its position."""
        if self.column not in columns:
            known = ", ".join(sorted(columns)) or "none"
            raise ConfigError(f"data.partitioner.column: {self.column!r} is not in the data; give one of: {known}")
        values, codes, sizes = np.unique(columns[self.column], return_inverse=True, return_counts=True)
        if empty := np.count_nonzero(columns[self.column] == ""):
            raise DataError(f"data.partitioner.column: {self.column!r} is empty for {empty} examples; fill it in")
        enough = sizes >= self.least
        if not enough.any():
            most = sizes.max(initial=0)
            raise DataError(
                f"data.partitioner.least: {self.least} is more than any {self.column!r} has; give at most {most}"
            )
        rows = np.flatnonzero(enough[codes])
        return values[enough], rows, (np.cumsum(enough) - 1)[codes[rows]]
