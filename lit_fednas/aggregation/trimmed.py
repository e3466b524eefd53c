"""Means that leave out extreme values, element by element (Yin et al., ICML 2018, Definitions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.sums import Sums, summable_dtype
from lit_fednas.messages import nbytes
from lit_fednas.supernets import Region


class TrimmedSums(Sums):
    """The values of all clients, of which an element's mean leaves out the lowest and the highest.

    Of the n clients that hold an element, the min(ceil(trim n), ceil(n / 2) - 1) lowest values and as many of the
    highest are left out; the others are averaged by their clients' weights. It is rounded up, as few clients may hold
    an element: of three or more, one goes at either end. With a trim of 0.5 that is the median: the middle value, or
    the weighted mean of the two in the middle. Equal values are in the order of the clients.

    Args:
        shared: The shared tensors.
        holders: The clients and architectures that may send some of each tensor.
        trim: The share of the values that is left out at either end.
        min_clients: Elements that fewer clients trained keep their value.
    """

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

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return nbytes(self.values.values())

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

    @override
    def merge(self, other: Self) -> None:
        for name, values in other.values.items():
            self.holders[name] += other.holders[name]
            self.values[name] = torch.cat([self.values[name], values])
            self.weights[name] = torch.cat([self.weights[name], other.weights[name]])

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
