"""The contract of all data sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.transforms import Augmentation, Normalize

Split = Literal["train", "val", "test"]


class DataSource(ABC):
    """Where examples come from, and what is usually done to them.

    The constructor keeps settings and nothing else. ``prepare`` runs once per node and may download or
    decode; ``load`` runs in every process. The properties are known without decoding all examples.
    """

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The number of classes."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) for images."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return tuple(str(label) for label in range(self.num_classes))

    @property
    def normalization(self) -> Normalize | None:
        """What makes inputs float; None scales uint8 to [0, 1]."""
        return None

    @property
    def augmentation(self) -> Sequence[Augmentation]:
        """What is usually done to training batches, in this order."""
        return ()

    def prepare(self) -> None:  # noqa: B027 - most sources have nothing to prepare
        """Downloads or decodes, where there is anything to."""

    def prepare_dataset(self) -> None:
        """Prepares what ``dataset`` reads; sources that decode on access override both."""
        self.prepare()

    @abstractmethod
    def load(self, split: Split) -> Examples | None:
        """Returns one split, in memory; None where the source has no such split."""

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split for reading example by example; sources that decode on access override this."""
        return self.load(split)
