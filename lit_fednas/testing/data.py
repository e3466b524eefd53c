"""Contracts of data sources and partitioners."""

import pickle
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from lit_fednas.data import IID, DataSource, Examples, FederatedDataModule
from lit_fednas.data.sources.base import SPLITS
from lit_fednas.testing.contract import Contract, assert_alike, global_seed


class DataSourceContract(Contract):
    """The contract of data sources; ``instances`` make sources from an empty folder.

    Each function writes its source's files into the folder. It runs twice per folder, and must write the same files.

    Example:
        >>> from lit_fednas.data import Digits
        >>> class TestDigits(DataSourceContract):
        ...     instances = {"all": lambda folder: Digits()}
    """

    def make(self) -> DataSource:
        """Returns a fresh source, as every process of a run makes it."""
        return self.case.make(self.folder)

    def check_examples_are_of_the_task(self) -> None:
        """Training examples exist; every split has valid targets of the task, and columns with a row per example."""
        source = self.make()
        loaded = {split: source.load(split) for split in SPLITS}
        assert loaded["train"] is not None
        for examples in (part for part in loaded.values() if part is not None):
            assert len(examples) > 0
            source.task.check(examples.targets)
            assert all(len(column) == len(examples) for column in examples.columns.values())
            assert examples.first_not_finite() is None

    def check_names_are_those_of_the_outputs(self) -> None:
        """Each of the task's outputs has its own name."""
        source = self.make()
        assert len(source.class_names) == len(set(source.class_names)) == source.task.num_outputs
        assert all(isinstance(name, str) for name in source.class_names)

    def check_batches_are_of_the_stated_shape(self) -> None:
        """Clients' augmented batches and the server's batches are finite, with the stated shape and type."""
        source = self.make()
        data = FederatedDataModule(source, IID(), num_clients=1, server_val=1)
        data.prepare_data()
        data.setup("fit")
        batches = [*data.clients.batches(0, 2, torch.Generator().manual_seed(0)), *data.val_dataloader()]
        assert batches
        for inputs, targets in batches:
            assert inputs.shape[1:] == source.input_shape
            assert inputs.dtype == source.input_dtype
            assert len(inputs) == len(targets)
            assert inputs.isfinite().all()

    def check_every_process_loads_the_same(self) -> None:
        """Equal settings and pickled copies load equal examples, independent of the global generators."""
        sources = [self.make(), self.make(), pickle.loads(pickle.dumps(self.make()))]
        expected = _train(sources[0])
        with global_seed(7):
            for source in sources:
                loaded = _train(source)
                assert_alike([loaded.inputs, loaded.targets], [expected.inputs, expected.targets])
                columns = [{name: values.tolist() for name, values in e.columns.items()} for e in (loaded, expected)]
                assert columns[0] == columns[1]
                assert source.class_names == sources[0].class_names

    def check_reading_by_example_equals_loading(self) -> None:
        """``dataset`` returns the examples of ``load`` one by one."""
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
    examples = source.load("train")
    assert examples is not None
    return examples


class PartitionerContract(Contract):
    """The contract of partitioners; ``instances`` make partitioners.

    Attributes:
        targets: Classes of the partitioned examples; by default 2000 examples of ten classes.
        columns: Natural groupings of these examples; by default ``site`` with 25 sites.

    Example:
        >>> from lit_fednas.data import Shards
        >>> class TestShards(PartitionerContract):
        ...     instances = {"three-each": lambda: Shards(3)}
    """

    targets: ClassVar[np.ndarray] = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))
    columns: ClassVar[Mapping[str, np.ndarray]] = {"site": np.random.default_rng(1).integers(0, 25, len(targets))}

    def check_each_example_goes_to_one_client(self) -> None:
        """Every client has examples; every example has one client, or at most one if ``deals_all`` is False."""
        partitioner = self.case.make()
        for num_clients in (1, 2, 7, 20):
            partition = partitioner.partition(self.targets, num_clients, seed=3, columns=self.columns)
            dealt = np.sort(np.concatenate(list(partition)))
            assert len(np.unique(dealt)) == len(dealt)
            assert set(dealt.tolist()) <= set(range(len(self.targets)))
            assert len(dealt) == len(self.targets) or not partitioner.deals_all
            assert len(partition) == num_clients
            assert min(partition.sizes) > 0

    def check_is_a_function_of_the_seed(self) -> None:
        """Equal seeds give equal partitions, other seeds others; global generators and inputs are unchanged."""
        targets, columns = self.targets.copy(), {name: column.copy() for name, column in self.columns.items()}
        with global_seed(0):
            first, repeated, other = (
                [part.tolist() for part in self.case.make().partition(targets, 7, seed=seed, columns=columns)]
                for seed in (5, 5, 6)
            )
        assert first == repeated != other
        assert np.array_equal(targets, self.targets)
        assert all(np.array_equal(columns[name], column) for name, column in self.columns.items())
