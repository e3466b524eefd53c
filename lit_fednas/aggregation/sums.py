"""Running sums of updates: by element, or with extreme values left out (Yin et al., ICML 2018, Definitions 1 and 2)."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.supernets import Region

_ALIGNMENT = 64  # bytes, for vectorised kernels


class FlatTensors(Mapping[str, Tensor]):
    """Named tensors as views into one buffer per dtype, so that all are zeroed or sent at once."""

    def __init__(self, like: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> None:
        sizes: dict[torch.dtype, int] = {}
        offsets: dict[str, int] = {}
        for name, tensor in like.items():
            dtype = dtypes[name]
            offsets[name] = sizes.get(dtype, 0)
            step = _ALIGNMENT // dtype.itemsize
            sizes[dtype] = offsets[name] + -(-tensor.numel() // step) * step
        device = next(iter(like.values())).device if like else torch.device("cpu")
        blocks = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self.buffers: list[Tensor] = list(blocks.values())  # the padding between views stays zero
        self._views = {
            name: blocks[dtypes[name]].as_strided(tensor.shape, _dense_strides(tensor), offsets[name])
            for name, tensor in like.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def zero_(self) -> None:
        """Sets all elements to zero."""
        for buffer in self.buffers:
            buffer.zero_()

    def fits(self, like: Mapping[str, Tensor]) -> bool:
        """Returns whether the views have the names, shapes and device of the tensors."""
        return self._views.keys() == like.keys() and all(
            view.shape == like[name].shape
            and view.stride() == _dense_strides(like[name])
            and view.device == like[name].device
            for name, view in self._views.items()
        )


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Returns the tensor's strides without gaps, in its own order, so that sums run along its memory."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


class Sums(ABC):
    """What a round's updates add up to."""

    def reset(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> bool:
        """Zeroes the sums for another round; returns whether their memory fits these tensors."""
        return False

    @abstractmethod
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        """Adds a client's tensors: the region of each in the shared ones, its value, and its weight."""

    @property
    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All that is added up over the ranks."""

    @abstractmethod
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the averages by name, which may be the sums' memory; what has no weight gets its old value."""


class OverlapSums(Sums):
    """Weighted sums of shared tensors, and the weights: per element of the ``partial`` ones, or one per tensor."""

    def __init__(self, shared: Mapping[str, Tensor], partial: Collection[str], min_clients: int = 1) -> None:
        dtypes = {name: summable_dtype(tensor) for name, tensor in shared.items()}
        in_part = {name: tensor for name, tensor in shared.items() if name in partial}
        self.values = FlatTensors(shared, dtypes)
        self.weights = FlatTensors(in_part, dtypes)
        self.min_clients = min_clients
        self.clients = FlatTensors(in_part if min_clients > 1 else {}, dtypes)  # how many trained each element
        # a tensor's one weight and its clients stay on the CPU, so that reading them does not wait for a GPU
        self.index = {name: number for number, name in enumerate(name for name in shared if name not in partial)}
        self.whole = torch.zeros(2, len(self.index), dtype=torch.float64)

    @override
    def reset(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> bool:
        in_part = {name: tensor for name, tensor in shared.items() if name in partial}
        if not self.values.fits(shared) or not self.weights.fits(in_part):
            return False
        for flat in (self.values, self.weights, self.clients):
            flat.zero_()
        self.whole.zero_()
        return True

    @torch.no_grad()
    @override
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        by_weight: dict[float, tuple[list[Tensor], list[Tensor], list[int]]] = {}  # whole tensors
        for region, value, weight in parts:
            if weight == 0:
                continue
            total = self.values[region.name]
            sums, values, counted = by_weight.setdefault(weight, ([], [], []))
            if region.index is None and value.dtype == total.dtype:
                sums.append(total)
                values.append(value)
            else:
                region.add_to(total, value.to(total.dtype), weight)
            if region.name in self.index:
                counted.append(self.index[region.name])
                continue
            region.add_to(self.weights[region.name], 1.0, weight)
            if region.name in self.clients:
                region.add_to(self.clients[region.name], 1.0, 1.0)
        for weight, (sums, values, counted) in by_weight.items():
            if sums:
                torch._foreach_add_(sums, values, alpha=weight)
            self.whole[:, counted] += torch.tensor([[weight], [1.0]], dtype=torch.float64)

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*self.values.buffers, *self.weights.buffers, *self.clients.buffers, self.whole]

    @torch.no_grad()
    @override
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        averages = dict(self.values)
        for name, weight, clients in zip(self.index, *self.whole.tolist(), strict=True):
            if weight <= 0 or clients < self.min_clients:
                averages[name].copy_(shared[name])
            elif abs(weight - 1) > 1e-12:  # otherwise all have trained it, and the division is superfluous
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


def summable_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of a tensor's sum: double precision for integer buffers (counters), else float32."""
    return torch.float32 if tensor.is_floating_point() else torch.float64


class TrimmedSums(Sums):
    """Keeps all values; an element's mean leaves out the min(ceil(trim n), ceil(n / 2) - 1) lowest and highest."""

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
    @override
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        for region, value, weight in parts:
            if weight == 0:
                continue
            row = self.holders[region.name].index(holder)
            kept = self.values[region.name][row]
            if self.weights[region.name][row] == 0:
                kept.fill_(torch.nan)  # elements that it does not hold; rows of other ranks stay zero
            kept[... if region.index is None else region.index] = value.to(kept.dtype)
            self.weights[region.name][row] = weight

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*self.values.values(), *self.weights.values()]

    @torch.no_grad()
    @override
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        averages = {}
        for name, values in self.values.items():
            holders, weights = self.holders[name], self.weights[name]
            # by clients, whatever the order of merging: equal values may have different weights
            rows = [row for row in range(len(holders)) if weights[row] > 0]
            rows.sort(key=lambda row: (holders[row][0], str(holders[row][1])))
            old = shared[name].to(values.dtype)
            mean, count = self._mean(values[rows], weights[rows].to(values))
            enough = count >= self.min_clients
            averages[name] = torch.where(enough, mean, old)
            if not shared[name].is_floating_point():
                averages[name].round_()
        return averages

    def _mean(self, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each element's trimmed mean, and how many clients hold it."""
        ordered, order = values.sort(dim=0, stable=True)  # NaN comes last
        count = ordered.isfinite().sum(dim=0)
        share = (self.trim * count.double() - 1e-9).ceil()
        cut = torch.minimum(share, (count - 1).div(2, rounding_mode="floor"))
        place = torch.arange(len(values), device=values.device).view(-1, *[1] * (values.dim() - 1))
        kept = weights[order].masked_fill_((place < cut) | (place >= count - cut), 0)
        return (kept * ordered.nan_to_num(0)).sum(dim=0) / kept.sum(dim=0), count
