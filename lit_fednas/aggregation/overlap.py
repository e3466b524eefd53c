"""Averaging by overlap cardinality: SuperFed's Algorithm 1, lines 9 to 15.

Every shared element becomes the mean of its values in those updates that hold it, each weighted by its
client's examples n_k. Elements in no update keep their value; this is known by counting, never by testing for
zero (the paper's ``replace_zeros`` would take a weight that is exactly zero for one that nobody trained).
With one architecture for all it is federated averaging (App. C).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.buffers import FlatTensors
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate
from lit_fednas.supernets import Region, Supernet


class OverlapAverage(Aggregation):
    """Weighted mean over the clients that hold an element.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
    """

    def __init__(self, weighted: bool = True) -> None:
        self.weighted = weighted
        self._sums: FlatTensors | None = None  # kept from round to round: new memory has to be cleared first
        self._weights: FlatTensors | None = None

    def coefficient(self, task: ClientTask) -> float:
        """The weight of one client's update, n_k or 1."""
        return float(task.num_examples) if self.weighted else 1.0

    def weight(self, update: ClientUpdate, name: str) -> float:
        """The weight of one tensor of an update, by its name in the subnet."""
        return self.coefficient(update.task)

    def said(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        """What counts of an update: each tensor's name in the subnet, where it lies, and its value."""
        for name, region in self._supernet.regions(update.task.arch).items():
            yield name, region, update.weights[name]

    def in_part(self, tasks: Sequence[ClientTask]) -> set[str]:
        """The shared tensors of which a client may answer a part only; these have a weight per element."""
        return {
            region.name
            for arch in {task.arch for task in tasks}
            for region in self._supernet.regions(arch).values()
            if region.index is not None
        }

    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Zeroes the sums, and weights: per element, or one per tensor that nobody holds a part of only."""
        self._supernet = supernet
        shared = supernet.shared_tensors()
        dtypes = {name: _summable(tensor) for name, tensor in shared.items()}
        self._scale = self._normaliser(tasks)
        if self._sums is not None and self._sums.fits(shared):
            self._sums.zero_()
        else:
            self._sums = FlatTensors(shared, dtypes)
        partial = self.in_part(tasks)
        in_part = {name: tensor for name, tensor in shared.items() if name in partial}
        if self._weights is not None and self._weights.fits(in_part):
            self._weights.zero_()
        else:
            self._weights = FlatTensors(in_part, dtypes)
        # a tensor's one weight stays on the CPU, so that reading it does not wait for a GPU
        self._whole = {name: place for place, name in enumerate(name for name in shared if name not in partial)}
        self._whole_weights = torch.zeros(len(self._whole), dtype=torch.float64)

    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Adds the update's tensors into their regions, in place."""
        assert self._sums is not None
        assert self._weights is not None
        alike: dict[float, tuple[list[Tensor], list[Tensor], list[int]]] = {}  # whole tensors by weight
        for name, region, value in self.said(update):
            weight = self.weight(update, name) * self._scale
            if weight == 0:
                continue
            total = self._sums[region.name]
            sums, values, counted = alike.setdefault(weight, ([], [], []))
            if region.index is None and value.dtype == total.dtype:
                sums.append(total)
                values.append(value)
            else:
                region.add_to(total, value.to(total.dtype), weight)
            if region.name in self._whole:
                counted.append(self._whole[region.name])
            else:
                region.add_to(self._weights[region.name], 1.0, weight)
        for weight, (sums, values, counted) in alike.items():
            if sums:
                torch._foreach_add_(sums, values, alpha=weight)
            self._whole_weights[counted] += weight

    def sums(self) -> list[Tensor]:
        """Sums and weights of all shared tensors."""
        assert self._sums is not None
        assert self._weights is not None
        return [*self._sums.buffers, *self._weights.buffers, self._whole_weights]

    @torch.no_grad()
    def withhold(self, arch: Any) -> None:
        """Takes the weight of what was added to an architecture's elements, so that they keep their value."""
        assert self._weights is not None
        for region in self._supernet.regions(arch).values():
            if region.name in self._whole:
                self._whole_weights[self._whole[region.name]] = 0
            elif region.index is None:
                self._weights[region.name].zero_()
            else:
                self._weights[region.name][region.index] = 0

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Divides sums by weights where anyone trained, and takes the old value elsewhere."""
        assert self._sums is not None
        assert self._weights is not None
        shared = self._supernet.shared_tensors()
        averages = dict(self._sums)
        for name, weight in zip(self._whole, self._whole_weights.tolist(), strict=True):
            if weight <= 0:
                averages[name].copy_(shared[name])
            elif abs(weight - 1) > 1e-12:  # else all have trained it, and one division less is to be made
                averages[name].div_(weight)
        for name, weights in self._weights.items():
            mean = averages[name].div_(weights)
            torch.where(weights > 0, mean, shared[name].to(mean.dtype), out=mean)
        for name, mean in averages.items():
            if not shared[name].is_floating_point():
                mean.round_()
        return averages

    def _normaliser(self, tasks: Sequence[ClientTask]) -> float:
        """Brings the coefficients' sum to 1, so that sums stay in the range of the weights."""
        total = sum(self.coefficient(task) for task in tasks)
        if total <= 0:
            raise ConfigError(
                f"aggregation: the round's {len(tasks)} clients have no weight together; "
                f"see that they have examples, or set aggregation.weighted to false"
            )
        return 1.0 / total


def _summable(tensor: Tensor) -> torch.dtype:
    """Integer buffers (counters) are averaged in double precision, all else in float32."""
    return torch.float32 if tensor.is_floating_point() else torch.float64
