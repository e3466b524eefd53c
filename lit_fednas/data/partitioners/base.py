"""The contract of all partitioners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from lit_fednas.data.partition import Partition
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import numpy_generator


class Partitioner(ABC):
    """Deals all examples out to clients, as a pure function of its settings and a seed.

    To add one, subclass this, say in ``split`` who gets which rows, and export it from
    ``lit_fednas.data.partitioners``. ``partition`` checks the promise that all keep: every example goes to
    exactly one client, and no client is empty. One that leaves examples out sets ``deals_all`` to False.
    """

    deals_all: bool = True

    @abstractmethod
    def split(
        self,
        targets: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        columns: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Returns the rows of each client.

        Args:
            targets: the class of each example [N].
            num_clients: at least 1, at most N.
            rng: the only source of randomness.
            columns: natural groupings, each [N].
        """

    def default_num_clients(self, columns: Mapping[str, np.ndarray]) -> int:
        """Returns the number of clients where none was given; most partitioners have none of their own."""
        raise ConfigError(f"num_clients: None is no number for {type(self).__name__}; give 1 or more")

    def partition(
        self,
        targets: np.ndarray,
        num_clients: int | None,
        seed: int = 0,
        columns: Mapping[str, np.ndarray] | None = None,
    ) -> Partition:
        """Partitions the examples and checks the result.

        Args:
            targets: the class of each example [N].
            num_clients: None leaves the number to the partitioner.
            seed: the run's seed.
            columns: natural groupings, each [N].

        Returns:
            The partition, each client's rows in ascending order.

        Raises:
            ConfigError: ``num_clients`` is no number of clients.
            DataError: there are more clients than examples, or the examples cannot be split so.
        """
        targets, columns = np.asarray(targets), columns or {}
        count = self.default_num_clients(columns) if num_clients is None else num_clients
        if count < 1:
            raise ConfigError(f"num_clients: {count} is not enough; give 1 or more")
        if count > len(targets):
            raise DataError(f"num_clients: {count} for {len(targets)} examples; give at most {len(targets)}")
        rows = self.split(targets, count, numpy_generator(seed, "partition"), columns)
        result = Partition(tuple(np.sort(part) for part in rows), len(targets))
        self._check(result, count)
        return result

    def _check(self, result: Partition, num_clients: int) -> None:
        """Finds a partitioner that does not keep the promise."""
        name = type(self).__name__
        dealt = sum(result.sizes) == result.num_examples or not self.deals_all
        if len(result) != num_clients or not dealt:
            raise DataError(
                f"{name}: dealt {sum(result.sizes)} of {result.num_examples} examples to {len(result)} of "
                f"{num_clients} clients; its split must deal each example once"
            )
        if 0 in result.sizes:
            raise DataError(f"{name}: client {result.sizes.index(0)} is empty; give fewer clients")
