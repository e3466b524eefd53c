"""The contract of all data sources, and what sources with natural clients have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.tasks import Classification, Task
from lit_fednas.data.transforms import Augmentation, Normalize

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

#: Which examples go to the clients: those that the data set has for training, or all.
Deal = Literal["train", "all"]


class DataSource(ABC):
    """Where examples come from, and what is usually done to them.

    The constructor keeps settings and nothing else. ``prepare`` runs once per node and may download or
    decode; ``load`` runs in one of a run's processes on each node, whose memory the others share, so that a source
    keeps no examples. The attributes are known in every process, without decoding all examples; a subclass sets them or
    overrides them by cached properties. ``normalization`` is asked for in one process, once it has loaded ``train``.

    Attributes:
        num_classes: The number of classes.
        task: What targets are; one class per example, unless a source says otherwise.
        input_shape: The shape of one input: (C, H, W) for images.
        input_dtype: The type of batches: float32, or int64 where inputs are tokens.
        normalization: What makes inputs float; None scales uint8 to [0, 1].
        augmentation: What is usually done to training batches, in this order.
    """

    num_classes: int
    input_shape: tuple[int, ...]
    input_dtype: torch.dtype = torch.float32
    normalization: Normalize | None = None
    augmentation: Sequence[Augmentation] = ()

    @cached_property
    def task(self) -> Task:
        """What targets are."""
        return Classification(self.num_classes)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """One name per class or other output; their numbers where they have no names."""
        return tuple(str(label) for label in range(self.task.num_outputs))

    def prepare(self, in_memory: bool = True) -> None:  # noqa: B027 - most sources have nothing to prepare
        """Downloads or decodes, if the source needs it.

        Args:
            in_memory: Whether ``load`` will read the data; else ``dataset`` will.
        """

    @abstractmethod
    def load(self, split: Split) -> Examples | None:
        """Returns one split, in memory; None where the source has no such split.

        Raises:
            DataError: The data are missing, damaged or not as the source describes them.
        """

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split for reading example by example; sources that decode on access override this."""
        return self.load(split)


def of_large_clients(clients: np.ndarray, least: int) -> np.ndarray:
    """Returns which examples belong to a client with ``least`` examples or more: bool [N].

    Example:
        >>> of_large_clients(np.array(["a", "b", "a"]), 2).tolist()
        [True, False, True]
    """
    _, codes, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    return (sizes >= least)[codes]
