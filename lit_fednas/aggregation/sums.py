"""Running sums of updates, in one block of memory each, so that they are zeroed or sent at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.supernets import Region

_ALIGNMENT = 64  # bytes, for vectorised kernels


class FlatTensors(Mapping[str, Tensor]):
    """Named tensors of given shapes as views into one buffer per dtype.

    Args:
        like: Tensors whose shapes, strides and device the views have.
        dtypes: The dtype of each view.

    Attributes:
        buffers: The blocks of memory; the padding between views is zero as long as nobody writes there.

    Example:
        >>> like = {"a": torch.ones(2, 3), "b": torch.ones(4)}
        >>> flat = FlatTensors(like, dict.fromkeys(like, torch.float32))
        >>> ones = flat["b"].add_(1)
        >>> [float(buffer.sum()) for buffer in flat.buffers]
        [4.0]
    """

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
        self.buffers: list[Tensor] = list(blocks.values())
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
        """Adds a client's tensors, in place.

        Args:
            holder: The client and its architecture.
            parts: Where each tensor lies in the shared ones, its value, and its weight.
        """

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Adds the sums of other updates of some of the same tensors."""

    @property
    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All that is added up over the ranks."""

    @abstractmethod
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the averages by name; what has no weight gets its old value.

        Args:
            shared: The old values.

        Returns:
            Tensors that may share the sums' memory.
        """


class OverlapSums(Sums):
    """Weighted sums of shared tensors, and the weights: per element, or one per tensor.

    Args:
        shared: The shared tensors.
        partial: Names of those of which a client may hold a part only; these have a weight per element.
    """

    def __init__(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> None:
        dtypes = {name: summable_dtype(tensor) for name, tensor in shared.items()}
        in_part = {name: tensor for name, tensor in shared.items() if name in partial}
        self.values = FlatTensors(shared, dtypes)
        self.weights = FlatTensors(in_part, dtypes)
        # a tensor's one weight stays on the CPU, so that reading it does not wait for a GPU
        self.index = {name: number for number, name in enumerate(name for name in shared if name not in partial)}
        self.whole_weights = torch.zeros(len(self.index), dtype=torch.float64)

    @override
    def reset(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> bool:
        in_part = {name: tensor for name, tensor in shared.items() if name in partial}
        if not self.values.fits(shared) or not self.weights.fits(in_part):
            return False
        self.values.zero_()
        self.weights.zero_()
        self.whole_weights.zero_()
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
            else:
                region.add_to(self.weights[region.name], 1.0, weight)
        for weight, (sums, values, counted) in by_weight.items():
            if sums:
                torch._foreach_add_(sums, values, alpha=weight)
            self.whole_weights[counted] += weight

    @torch.no_grad()
    @override
    def merge(self, other: Self) -> None:
        for name, value in other.values.items():
            self.values[name].add_(value)
        for name, weights in other.weights.items():
            self.weights[name].add_(weights)
        for name, number in other.index.items():
            self.whole_weights[self.index[name]] += other.whole_weights[number]

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*self.values.buffers, *self.weights.buffers, self.whole_weights]

    @torch.no_grad()
    @override
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        averages = dict(self.values)
        for name, weight in zip(self.index, self.whole_weights.tolist(), strict=True):
            if weight <= 0:
                averages[name].copy_(shared[name])
            elif abs(weight - 1) > 1e-12:  # otherwise all have trained it, and the division is superfluous
                averages[name].div_(weight)
        for name, weights in self.weights.items():
            mean = averages[name].div_(weights)
            torch.where(weights > 0, mean, shared[name].to(mean.dtype), out=mean)
        for name, mean in averages.items():
            if not shared[name].is_floating_point():
                mean.round_()
        return averages


def summable_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of a tensor's sum: double precision for integer buffers (counters), else float32."""
    return torch.float32 if tensor.is_floating_point() else torch.float64
