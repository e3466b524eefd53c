"""What every partitioner promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest

from lit_fednas.data import Partitioner
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.testing.contract import Contract, global_generators


class PartitionerContract(Contract):
    """The contract of partitioners; ``instances`` make partitioners.

    Attributes:
        targets: The classes of the examples that are dealt out: 2000 of ten classes, unless a subclass sets others.
        columns: Natural groupings of these examples: ``site``, of 25 sites.

    Example:
        >>> from lit_fednas.data import Shards
        >>> class TestShards(PartitionerContract):
        ...     instances = {"three-each": lambda: Shards(3)}
    """

    targets: ClassVar[np.ndarray] = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))
    columns: ClassVar[Mapping[str, np.ndarray]] = {"site": np.random.default_rng(1).integers(0, 25, len(targets))}

    def check_each_example_goes_to_one_client(self) -> None:
        """Every client has examples, and every example one client; or none, if ``deals_all`` is False."""
        partitioner: Partitioner = self.case.make()
        for num_clients in (1, 2, 7, 20):
            partition = partitioner.partition(self.targets, num_clients, seed=3, columns=self.columns)
            dealt = np.sort(np.concatenate(list(partition)))
            assert len(np.unique(dealt)) == len(dealt)
            assert set(dealt.tolist()) <= set(range(len(self.targets)))
            assert len(dealt) == len(self.targets) or not partitioner.deals_all
            assert len(partition) == num_clients
            assert min(partition.sizes) > 0

    def check_is_a_function_of_the_seed(self) -> None:
        """Equal seeds deal alike, different ones do not, and no global generator is read or moved."""
        partitioner: Partitioner = self.case.make()
        before = global_generators()
        first, again, other = (
            partitioner.partition(self.targets, 7, seed=seed, columns=self.columns) for seed in (5, 5, 6)
        )
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
        assert global_generators() == before

    def check_leaves_its_inputs_alone(self) -> None:
        """Targets and columns are not written to."""
        partitioner: Partitioner = self.case.make()
        targets, columns = self.targets.copy(), {name: column.copy() for name, column in self.columns.items()}
        partitioner.partition(targets, 7, columns=columns)
        assert np.array_equal(targets, self.targets)
        assert all(np.array_equal(columns[name], column) for name, column in self.columns.items())

    def check_refuses_more_clients_than_examples(self) -> None:
        """Clients that outnumber the examples are refused."""
        partitioner: Partitioner = self.case.make()
        count = len(self.targets)
        with pytest.raises(DataError, match=f"num_clients: {count + 1} for {count} examples"):
            partitioner.partition(self.targets, count + 1, columns=self.columns)

    def check_refuses_no_clients(self) -> None:
        """A number of clients below 1 is refused."""
        partitioner: Partitioner = self.case.make()
        for num_clients in (0, -1):
            with pytest.raises(ConfigError, match="num_clients"):
                partitioner.partition(self.targets, num_clients, columns=self.columns)
