"""Running sums of updates, with weights per element, or trimmed (Yin et al., ICML 2018, Definitions 1 and 2)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_fednas.supernets import Region


class OverlapSums:
    """Weighted sums of shared tensors, with a weight per element of ``partial`` tensors, and one per other tensor."""

    def __init__(self, shared: Mapping[str, Tensor], partial: Collection[str], min_clients: int = 1) -> None:
        partial_tensors = {name: tensor for name, tensor in shared.items() if name in partial}
        self.values = zeros_like(shared)
        self.weights = zeros_like(partial_tensors)
        self.min_clients = min_clients
        self.clients = zeros_like(partial_tensors if min_clients > 1 else {})  # number of clients per element
        # Weights and numbers of clients of whole tensors stay on the CPU, where reading them does not wait for a GPU.
        self.index = {name: number for number, name in enumerate(name for name in shared if name not in partial)}
        self.whole = torch.zeros(2, len(self.index), dtype=torch.float64)

    @torch.no_grad()
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        """Adds a client's tensors: the region, value and weight of each."""
        by_weight: dict[float, tuple[list[Tensor], list[Tensor], list[int]]] = {}  # whole tensors by weight
        for region, value, weight in parts:
            if weight == 0:
                continue
            total = self.values[region.name]
            sums, values, columns = by_weight.setdefault(weight, ([], [], []))
            if region.index is None and value.dtype == total.dtype:
                sums.append(total)
                values.append(value)
            else:
                region.add_to(total, value.to(total.dtype), weight)
            if region.name in self.index:
                columns.append(self.index[region.name])
                continue
            region.add_to(self.weights[region.name], 1.0, weight)
            if region.name in self.clients:
                region.add_to(self.clients[region.name], 1.0, 1.0)
        for weight, (sums, values, columns) in by_weight.items():
            if sums:
                torch._foreach_add_(sums, values, alpha=weight)
            self.whole[:, columns] += torch.tensor([[weight], [1.0]], dtype=torch.float64)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that are added over the ranks."""
        return [*self.values.values(), *self.weights.values(), *self.clients.values(), self.whole]

    @torch.no_grad()
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the averages by name, in place where possible; elements without weight keep their value."""
        averages = dict(self.values)
        for name, weight, clients in zip(self.index, *self.whole.tolist(), strict=True):
            if weight <= 0 or clients < self.min_clients:
                averages[name].copy_(shared[name])
            elif abs(weight - 1) > 1e-12:  # a division by 1 is superfluous
                averages[name].div_(weight)
        for name, weights in self.weights.items():
            if name in self.clients:
                weights.masked_fill_(self.clients[name] < self.min_clients, 0)
            mean = averages[name].div_(weights)
            torch.where(weights > 0, mean, shared[name].to(mean.dtype), out=mean)
        for name, mean in averages.items():
            if not shared[name].is_floating_point():
                mean.round_()
        return averages

    def untrained(self) -> dict[str, Tensor]:
        """Returns masks of the elements without weight; call :meth:`averages` first."""
        masks = {name: weights <= 0 for name, weights in self.weights.items()}
        for name, weight, clients in zip(self.index, *self.whole.tolist(), strict=True):
            if weight <= 0 or clients < self.min_clients:
                masks[name] = torch.ones((), dtype=torch.bool, device=self.values[name].device)
        return masks


def summable_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of a tensor's sum: double precision for integer buffers (counters), else float32."""
    return torch.float32 if tensor.is_floating_point() else torch.float64


def zeros_like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns zeros in the shapes of tensors, by name, to add to."""
    return {name: torch.zeros_like(tensor, dtype=summable_dtype(tensor)) for name, tensor in tensors.items()}


class TrimmedSums:
    """All values of a round; a mean leaves out the min(ceil(trim n), ceil(n / 2) - 1) lowest and highest values."""

    def __init__(
        self, shared: Mapping[str, Tensor], holders: Mapping[str, Sequence[Any]], trim: float, min_clients: int = 1
    ) -> None:
        self.trim = trim
        self.min_clients = min_clients
        self.holders = {name: list(holders.get(name, ())) for name in shared}
        self.values = {
            name: tensor.new_zeros((len(self.holders[name]), *tensor.shape), dtype=summable_dtype(tensor))
            for name, tensor in shared.items()
        }
        self.weights = {name: torch.zeros(len(rows), dtype=torch.float64) for name, rows in self.holders.items()}

    @torch.no_grad()
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        """Stores a client's tensors: the region, value and weight of each."""
        for region, value, weight in parts:
            if weight == 0:
                continue
            row = self.holders[region.name].index(holder)
            row_values = self.values[region.name][row]
            if self.weights[region.name][row] == 0:
                row_values.fill_(torch.nan)  # elements outside the client's region; rows of other ranks stay 0
            row_values[... if region.index is None else region.index] = value.to(row_values.dtype)
            self.weights[region.name][row] = weight

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that are added over the ranks."""
        return [*self.values.values(), *self.weights.values()]

    @torch.no_grad()
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the averages by name, in place where possible; elements without weight keep their value."""
        averages = {}
        self._untrained: dict[str, Tensor] = {}
        for name, values in self.values.items():
            holders, weights = self.holders[name], self.weights[name]
            # Sorted by client, as equal values may have different weights: the order of merging has no effect.
            rows = [row for row in range(len(holders)) if weights[row] > 0]
            rows.sort(key=lambda row: (holders[row][0], str(holders[row][1])))
            old_values = shared[name].to(values.dtype)
            mean, count = self._mean(values[rows], weights[rows].to(values))
            is_trained = count >= self.min_clients
            averages[name] = torch.where(is_trained, mean, old_values)
            self._untrained[name] = ~is_trained
            if not shared[name].is_floating_point():
                averages[name].round_()
        return averages

    def untrained(self) -> dict[str, Tensor]:
        """Returns masks of the elements that too few clients trained; call :meth:`averages` first."""
        return self._untrained

    def _mean(self, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each element's trimmed mean, and its number of clients."""
        ordered, order = values.sort(dim=0, stable=True)  # NaN comes last
        count = ordered.isfinite().sum(dim=0)
        num_trimmed = (self.trim * count.double() - 1e-9).ceil()
        num_cut = torch.minimum(num_trimmed, (count - 1).div(2, rounding_mode="floor"))
        positions = torch.arange(len(values), device=values.device).view(-1, *[1] * (values.dim() - 1))
        kept_weights = weights[order].masked_fill_((positions < num_cut) | (positions >= count - num_cut), 0)
        return (kept_weights * ordered.nan_to_num(0)).sum(dim=0) / kept_weights.sum(dim=0), count
