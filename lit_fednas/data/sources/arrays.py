"""Examples that are handed over in Python."""

from __future__ import annotations

from collections.abc import Sequence

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError, DataError


class ArraySource(DataSource):
    """A user's own tensors as a data source.

    Args:
        train: the training examples.
        val: None lets the data module take them from ``train``.
        test: None where there are none.
        num_classes: None counts from the training targets.
        class_names: None numbers the classes.
        normalization: None scales uint8 to [0, 1] and leaves floats as they are.
        augmentation: applied to training batches, in this order.

    Raises:
        ConfigError: ``class_names`` are not one per class.
        DataError: a split is empty, or has a target outside the classes or inputs of another shape.

    Example:
        >>> import torch
        >>> ArraySource(Examples(torch.zeros(4, 2), torch.tensor([0, 1, 2, 1]))).num_classes
        3
    """

    def __init__(
        self,
        train: Examples,
        val: Examples | None = None,
        test: Examples | None = None,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        normalization: Normalize | None = None,
        augmentation: Sequence[Augmentation] = (),
    ) -> None:
        if not len(train):
            raise DataError("train: has no examples; give at least one")
        self._splits: dict[str, Examples | None] = {"train": train, "val": val, "test": test}
        self._num_classes = int(train.targets.max()) + 1 if num_classes is None else num_classes
        self._class_names = tuple(class_names or map(str, range(self._num_classes)))
        self._normalization = normalization
        self._augmentation = tuple(augmentation)
        if len(self._class_names) != self._num_classes:
            count = len(self._class_names)
            raise ConfigError(f"class_names: {count} names for {self._num_classes} classes; give one per class")
        for split, examples in self._splits.items():
            self._check(split, examples)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self._num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        train = self._splits["train"]
        assert train is not None
        return tuple(train.inputs.shape[1:])

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return self._class_names

    @property
    def normalization(self) -> Normalize | None:
        """As given."""
        return self._normalization

    @property
    def augmentation(self) -> Sequence[Augmentation]:
        """As given."""
        return self._augmentation

    def load(self, split: Split) -> Examples | None:
        """Returns the split as given."""
        return self._splits[split]

    def _check(self, split: str, examples: Examples | None) -> None:
        if examples is None:
            return
        if not len(examples):
            raise DataError(f"{split}: has no examples; leave it out")
        low, high = int(examples.targets.min()), int(examples.targets.max())
        if low < 0 or high >= self._num_classes:
            raise DataError(f"{split}: has targets {low}..{high}; give targets from 0 to {self._num_classes - 1}")
        if tuple(examples.inputs.shape[1:]) != self.input_shape:
            shape = tuple(examples.inputs.shape[1:])
            raise DataError(f"{split}: has inputs of shape {shape}; give {self.input_shape}, as in train")
