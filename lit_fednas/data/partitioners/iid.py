"""Independent and identically distributed clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lit_fednas.data.partitioners.base import Partitioner


class IID(Partitioner):
    """Deals the shuffled examples out in sizes that differ by at most one.

    Example:
        >>> IID().partition(np.zeros(7, dtype=int), num_clients=3).sizes
        (3, 2, 2)
    """

    def split(
        self,
        targets: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        columns: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Cuts one permutation into near-equal parts."""
        return np.array_split(rng.permutation(len(targets)), num_clients)
