"""What every data source and every partitioner promises."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
import torch

from lit_fednas.data import IID, DataSource, Examples, FederatedDataModule, Partitioner
from lit_fednas.data.sources.base import SPLITS
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.testing.contract import Contract, global_generators


class DataSourceContract(Contract):
    """The contract of data sources; ``instances`` make sources from a folder of their own.

    What makes a source is given an empty folder, in which it writes what the source reads. It is called twice for
    the same folder, and must write the same.

    Example:
        >>> from lit_fednas.data import Digits
        >>> class TestDigits(DataSourceContract):
        ...     instances = {"all": lambda folder: Digits()}
    """

    def make(self) -> DataSource:
        """Returns a fresh source, as every process of a run makes it."""
        source: DataSource = self.case.make(self.folder)
        return source

    def check_examples_are_of_the_task(self) -> None:
        """Training examples exist; those of every split have targets of the task, and columns with a row for each."""
        source = self.make()
        for split in SPLITS:
            examples = source.load(split)
            if examples is None:
                assert split != "train"
                continue
            assert len(examples) > 0
            source.task.check(examples.targets)
            assert all(len(column) == len(examples) for column in examples.columns.values())
            assert examples.first_not_finite() is None

    def check_names_are_those_of_the_outputs(self) -> None:
        """There is a name for each of the task's outputs, and no name twice."""
        source = self.make()
        assert len(source.class_names) == len(set(source.class_names)) == source.task.num_outputs
        assert all(isinstance(name, str) for name in source.class_names)

    def check_batches_are_of_the_stated_shape(self) -> None:
        """Batches of clients, with augmentation, and of the server have the stated shape and type, and are finite."""
        source = self.make()
        data = FederatedDataModule(source, IID(), num_clients=1, server_val=1)
        data.prepare_data()
        data.setup("fit")
        draws = torch.Generator().manual_seed(0)
        batches = [*data.clients.batches(0, 2, draws), *data.val_dataloader()]
        assert batches
        for inputs, targets in batches:
            assert inputs.shape[1:] == source.input_shape
            assert inputs.dtype == source.input_dtype
            assert len(inputs) == len(targets)
            assert inputs.isfinite().all()

    def check_every_process_loads_the_same(self) -> None:
        """Sources with the same settings, and a pickled one, load equal examples, whatever the global generators."""
        first, second = self.make(), self.make()
        third = pickle.loads(pickle.dumps(self.make()))
        expected = _train(first)
        np.random.seed(7)  # noqa: NPY002
        torch.manual_seed(7)
        before = global_generators()
        for other in (second, third):
            loaded = _train(other)
            assert torch.equal(loaded.inputs, expected.inputs)
            assert torch.equal(loaded.targets, expected.targets)
            assert {name: column.tolist() for name, column in loaded.columns.items()} == {
                name: column.tolist() for name, column in expected.columns.items()
            }
            assert other.class_names == first.class_names
        assert global_generators() == before

    def check_reading_by_example_equals_loading(self) -> None:
        """``dataset`` has the examples of ``load``, one by one."""
        source = self.make()
        expected, dataset = _train(source), source.dataset("train")
        assert dataset is not None
        assert len(dataset) == len(expected)
        assert torch.equal(torch.as_tensor(dataset.targets), expected.targets)
        for row in range(min(len(expected), 20)):
            raw, target = dataset[row]
            assert torch.equal(raw, expected.inputs[row])
            assert torch.equal(torch.as_tensor(target), expected.targets[row])


def _train(source: DataSource) -> Examples:
    """Returns the training examples."""
    examples = source.load("train")
    assert examples is not None
    return examples


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
