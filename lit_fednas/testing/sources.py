"""What every data source promises."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_fednas.data import IID, DataSource, Examples, FederatedDataModule
from lit_fednas.data.sources.base import SPLITS, Split
from lit_fednas.testing.contract import Case, Contract, global_generators


class DataSourceContract(Contract):
    """The contract of data sources; ``instances`` make sources from a folder of their own.

    What makes a source is given an empty folder, in which it writes what the source reads. It is called twice for
    the same folder, and must write the same.

    Example:
        >>> from lit_fednas.data import Digits
        >>> class TestDigits(DataSourceContract):
        ...     instances = {"all": lambda folder: Digits()}
    """

    @pytest.fixture
    def make(self, case: Case, tmp_path: Path) -> Callable[[], DataSource]:
        """Makes the source, as every process of a run does."""
        return lambda: case.make(tmp_path)

    @pytest.fixture
    def source(self, make: Callable[[], DataSource]) -> DataSource:
        """A fresh source."""
        return make()

    @pytest.mark.parametrize("split", SPLITS)
    def test_examples_are_of_the_task(self, source: DataSource, split: Split) -> None:
        """Training examples exist; those of every split have targets of the task, and columns with a row for each."""
        examples = source.load(split)
        if examples is None:
            assert split != "train"
            return
        assert len(examples) > 0
        source.task.check(examples.targets)
        assert all(len(column) == len(examples) for column in examples.columns.values())
        assert examples.first_not_finite() is None

    def test_names_are_those_of_the_outputs(self, source: DataSource) -> None:
        """There is a name for each of the task's outputs, and no name twice."""
        assert len(source.class_names) == len(set(source.class_names)) == source.task.num_outputs
        assert all(isinstance(name, str) for name in source.class_names)

    def test_batches_are_of_the_stated_shape(self, source: DataSource) -> None:
        """Batches of clients, with augmentation, and of the server have the stated shape and type, and are finite."""
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

    def test_every_process_loads_the_same(self, make: Callable[[], DataSource]) -> None:
        """Sources with the same settings, and a pickled one, load equal examples, whatever the global generators."""
        first, second = make(), make()
        third = pickle.loads(pickle.dumps(make()))
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

    def test_reading_by_example_equals_loading(self, source: DataSource) -> None:
        """``dataset`` has the examples of ``load``, one by one."""
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
