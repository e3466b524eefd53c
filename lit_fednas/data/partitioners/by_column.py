"""Natural partitions: by speaker, role, writer, site."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lit_fednas.data.partitioners.base import Partitioner
from lit_fednas.errors import ConfigError, DataError


class ByColumn(Partitioner):
    """Makes one client of each value of a column.

    With as many clients as values, client k holds the k-th value in sorted order; that is also what
    ``num_clients: null`` gives. With fewer clients, the values are shuffled by the seed and dealt out in
    turn, so that clients hold equally many values, give or take one, and a value is never torn apart.

    Args:
        column: the name of the column.

    Example:
        >>> columns = {"speaker": np.array(["ann", "bob", "ann", "cat"])}
        >>> partition = ByColumn("speaker").partition(np.zeros(4, dtype=int), None, columns=columns)
        >>> [rows.tolist() for rows in partition.indices]
        [[0, 2], [1], [3]]
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def default_num_clients(self, columns: Mapping[str, np.ndarray]) -> int:
        """Returns the number of distinct values."""
        return len(np.unique(self._values(columns)))

    def split(
        self,
        targets: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        columns: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Groups the rows by value, and the values by client.

        Raises:
            ConfigError: there is no such column.
            DataError: there are more clients than values.
        """
        values, codes = np.unique(self._values(columns), return_inverse=True)
        if num_clients > len(values):
            raise DataError(
                f"num_clients: {num_clients} for {len(values)} values of {self.column!r}; "
                f"give at most {len(values)}"
            )
        owners = np.arange(len(values))
        if num_clients < len(values):
            owners = rng.permutation(len(values)) % num_clients
        rows_owner = owners[codes]
        order = np.argsort(rows_owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(rows_owner, minlength=num_clients))[:-1])

    def _values(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.column not in columns:
            known = ", ".join(sorted(columns)) or "none"
            raise ConfigError(f"column: {self.column!r} is not in the data; give one of: {known}")
        return columns[self.column]
