"""Rows of many clients: how many each has is known, and whose they are is made when a client is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override


class ClientRows(Sequence[np.ndarray]):
    """The rows of each client, as a sequence that need not hold an array per client.

    Attributes:
        sizes: The number of rows of each client, int64 [clients].
    """

    sizes: np.ndarray

    @abstractmethod
    def of(self, client: int) -> np.ndarray:
        """Returns the rows of a client, int64, which must not be written to."""

    @override
    def __len__(self) -> int:
        return len(self.sizes)

    @override
    def __getitem__(self, client: Any) -> Any:
        chosen = range(len(self))[client]
        return self.of(chosen) if isinstance(chosen, int) else [self.of(one) for one in chosen]


def sizes_of(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the number of rows of each client, int64 [clients], read-only.

    Example:
        >>> sizes_of([np.array([0, 3]), np.array([1])])
        array([2, 1])
    """
    if isinstance(rows, ClientRows):
        return read_only(rows.sizes)
    return read_only(np.fromiter(map(len, rows), np.int64, len(rows)))


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
