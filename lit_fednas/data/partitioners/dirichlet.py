"""The Dirichlet partition of SuperFed (section 3.1, appendix L), after Lin et al. (2020)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lit_fednas.data.partitioners.base import Partitioner
from lit_fednas.errors import ConfigError, DataError


class Dirichlet(Partitioner):
    """Splits each class over the clients in proportions drawn from Dir(alpha); sizes differ too.

    SuperFed says no more than that. Common implementations in the line of Lin et al. (2020) also pass over
    clients that already hold their share N / num_clients when a further class is split, and draw anew until
    every client has 10 examples; ``balance`` and ``min_size`` are these two.

    Args:
        alpha: small values give each client few classes; 100 is close to uniform.
        min_size: draws are repeated until every client has as many examples.
        balance: pass over clients that hold N / num_clients already; False splits every class plainly.
        max_tries: draws before giving up.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> targets = np.repeat(np.arange(10), 100)
        >>> partition = Dirichlet(alpha=0.5).partition(targets, num_clients=5)
        >>> sum(partition.sizes), min(partition.sizes) >= 10
        (1000, True)
    """

    def __init__(self, alpha: float, min_size: int = 10, balance: bool = True, max_tries: int = 100) -> None:
        if not 0 < alpha < float("inf"):
            raise ConfigError(f"alpha: {alpha} is not positive; give a finite value above 0")
        if min_size < 1:
            raise ConfigError(f"min_size: {min_size} would allow empty clients; give 1 or more")
        if max_tries < 1:
            raise ConfigError(f"max_tries: {max_tries} never draws; give 1 or more")
        self.alpha = alpha
        self.min_size = min_size
        self.balance = balance
        self.max_tries = max_tries

    def split(
        self,
        targets: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        columns: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Draws until every client has ``min_size`` examples.

        Raises:
            DataError: that cannot be, or did not come about in ``max_tries`` draws.
        """
        if self.min_size * num_clients > len(targets):
            most = len(targets) // num_clients
            raise DataError(
                f"min_size: {self.min_size} for {num_clients} clients needs more than {len(targets)} "
                f"examples; give min_size {most} or less, or fewer clients"
            )
        for _ in range(self.max_tries):
            rows = self._draw(targets, num_clients, rng)
            if min(map(len, rows)) >= self.min_size:
                return rows
        raise DataError(
            f"alpha: {self.alpha} left a client below min_size {self.min_size} in each of {self.max_tries} "
            f"draws for num_clients {num_clients}; raise alpha, or lower min_size or num_clients"
        )

    def _draw(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Splits one class after the other."""
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients)
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            share = rng.dirichlet(np.full(num_clients, self.alpha))
            if self.balance:
                share = share * (sizes < len(targets) / num_clients)
            if not share.sum() > 0:  # the open clients' shares all vanished: the emptiest takes the class
                share = np.arange(num_clients) == sizes.argmin()
            # the last cut lies at len(members): rounding must not hand a remainder to a full client
            cuts = (np.cumsum(share / share.sum()) * len(members)).round().astype(int)
            for client, part in enumerate(np.split(members, cuts[:-1])):
                parts[client].append(part)
                sizes[client] += len(part)
        return [np.concatenate(part) for part in parts]
