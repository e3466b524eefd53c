"""Averaging by overlap cardinality: SuperFed's Algorithm 1, lines 9 to 15.

Every shared element becomes the mean of its values in those updates that hold it, each weighted by its
client's examples n_k. Elements in no update keep their value; this is known by counting, never by testing for
zero (the paper's ``replace_zeros`` would take a weight that is exactly zero for one that nobody trained).
With one architecture for all it is federated averaging (App. C).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate
from lit_fednas.supernets import Supernet


class OverlapAverage(Aggregation):
    """Weighted mean over the clients that hold an element.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
    """

    def __init__(self, weighted: bool = True) -> None:
        self.weighted = weighted

    def coefficient(self, task: ClientTask) -> float:
        """The weight of one client's update, n_k or 1."""
        return float(task.num_examples) if self.weighted else 1.0

    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Allocates the sums, and weights: per element, or one per tensor that nobody holds a part of only."""
        self._supernet = supernet
        shared = supernet.shared_tensors()
        self._scale = self._normaliser(tasks)
        partial = {
            region.name
            for arch in {task.arch for task in tasks}
            for region in supernet.regions(arch).values()
            if region.index is not None
        }
        self._sums = {name: torch.zeros_like(tensor, dtype=_summable(tensor)) for name, tensor in shared.items()}
        self._weights = {
            # a tensor's one weight stays on the CPU, so that reading it does not wait for a GPU
            name: torch.zeros_like(tensor, dtype=_summable(tensor))
            if name in partial
            else torch.zeros((), dtype=_summable(tensor))
            for name, tensor in shared.items()
        }

    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Adds the update's tensors into their regions, in place."""
        weight = self.coefficient(update.task) * self._scale
        whole_sums: list[Tensor] = []
        whole_values: list[Tensor] = []
        for name, region in self._supernet.regions(update.task.arch).items():
            value = update.weights[name]
            total = self._sums[region.name]
            if region.index is None and value.dtype == total.dtype:
                whole_sums.append(total)
                whole_values.append(value)
            else:
                region.add_to(total, value.to(total.dtype), weight)
            counts = self._weights[region.name]
            if counts.ndim == 0:
                counts += weight
            else:
                region.add_to(counts, 1.0, weight)
        if whole_sums:
            torch._foreach_add_(whole_sums, whole_values, alpha=weight)

    def sums(self) -> list[Tensor]:
        """Sums and weights of all shared tensors."""
        return [*self._sums.values(), *self._weights.values()]

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Divides sums by weights where anyone trained, and takes the old value elsewhere."""
        shared = self._supernet.shared_tensors()
        averages: dict[str, Tensor] = {}
        for name, total in self._sums.items():
            weight = self._weights[name]
            if weight.ndim == 0:
                mean = total.div_(weight) if float(weight) > 0 else shared[name].detach().clone()
            else:
                mean = torch.where(weight > 0, total.div_(weight), shared[name])
            averages[name] = mean.round_() if not shared[name].is_floating_point() else mean
        del self._sums, self._weights
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
