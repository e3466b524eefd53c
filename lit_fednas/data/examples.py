"""Examples: the tensors of one split, and the natural groupings that come with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lit_fednas.errors import DataError


class ExampleDataset(Protocol):
    """A map-style data set whose targets are known without decoding any input: ``Examples``, or ``LazyImages``."""

    @property
    def targets(self) -> Tensor:
        """The targets [N, ...]."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Natural groupings, each [N]."""

    def __len__(self) -> int:
        """The number of examples."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The raw input and the target of one example."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets of one split, in memory.

    Attributes:
        inputs: uint8 or float [N, C, H, W], or any [N, ...]. Images stay uint8 until they are batched.
        targets: [N, ...]: int64 classes [N], or what another task has (``lit_fednas.data.tasks``).
        columns: Natural groupings of the examples (a speaker, a site, ...), each [N].

    Raises:
        DataError: Lengths differ.

    Example:
        >>> sites = {"site": np.array(["a", "a", "b"])}
        >>> len(Examples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 1]), sites))
        3
    """

    inputs: Tensor
    targets: Tensor
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {"targets": len(self.targets), **{name: len(col) for name, col in self.columns.items()}}
        for name, length in lengths.items():
            if length != len(self.inputs):
                raise DataError(f"{name}: {length} rows for {len(self.inputs)} inputs; give one row per input")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def first_not_finite(self) -> int | None:
        """Returns the first row whose input has a NaN or an infinity; ``None`` if there is none."""
        if not self.inputs.is_floating_point() or not len(self):
            return None
        low, high = self.inputs.aminmax()  # both are NaN if one element is; needs no memory
        if (low - high).isfinite():
            return None
        return int(self.inputs.flatten(1).isfinite().all(1).logical_not().nonzero()[0])

    def to(self, device: torch.device | str) -> Examples:
        """Returns the same examples with their tensors on ``device``."""
        return Examples(self.inputs.to(device), self.targets.to(device), self.columns)
