"""OPA, aggregation by operators: FedorAS' Eq. 5.

Every operator becomes the mean of its values at the clients, each weighted by the examples that went through that
operator there. The fixed layers count all examples, so a network without choices is averaged as by FedAvg (section
3.1). An operator that fewer than two clients have trained keeps its weights, so that no single client's update can
be read off the server's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.aggregation.sums import FlatTensors, OverlapSums
from lit_fednas.messages import ClientUpdate, OperatorReport
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets import Region


class _CountingSums(OverlapSums):
    """Sums that also count the clients which trained each tensor, or each element of those shared in parts."""

    def __init__(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> None:
        super().__init__(shared, partial)
        self.clients = torch.zeros(len(self.index), dtype=torch.float64)
        self.clients_in_part = FlatTensors(dict(self.weights), dict.fromkeys(self.weights, torch.float32))

    @override
    def reset(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> bool:
        self.clients.zero_()
        self.clients_in_part.zero_()
        return super().reset(shared, partial)

    @torch.no_grad()
    def count(self, region: Region) -> None:
        """Counts one client that trained a region."""
        if region.name in self.index:
            self.clients[self.index[region.name]] += 1
        else:
            region.add_to(self.clients_in_part[region.name], 1.0, 1.0)

    @override
    def merge(self, other: OverlapSums) -> None:
        super().merge(other)
        assert isinstance(other, _CountingSums)
        for name, number in other.index.items():
            self.clients[self.index[name]] += other.clients[number]
        for name, clients in other.clients_in_part.items():
            self.clients_in_part[name].add_(clients)

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*super().tensors, self.clients, *self.clients_in_part.buffers]

    @torch.no_grad()
    def drop_weights_below(self, min_clients: int) -> float:
        """Drops the weights of what too few clients trained; returns the share of tensors that keep some."""
        self.whole_weights[self.clients < min_clients] = 0
        for name, weights in self.weights.items():
            weights.masked_fill_(self.clients_in_part[name] < min_clients, 0)
        changed = int((self.whole_weights > 0).sum())
        changed += sum(bool((weights > 0).any()) for weights in self.weights.values())
        return changed / (len(self.index) + len(self.weights))


@checked("aggregation")
class OperatorAverage(OverlapAverage):
    """Mean of an operator over the clients that trained it, weighted by the examples that went through it.

    Buffers are averaged as the weights of their operator. The examples come from the clients' reports
    (:class:`~lit_fednas.objectives.PathSampling`).

    Args:
        min_clients: Operators trained by fewer clients than this keep their weights (the paper: 2).

    Raises:
        ConfigError: ``min_clients`` is out of range, or the objective does not report the examples.
    """

    needs = (OperatorReport,)

    def __init__(self, min_clients: PositiveInt = 2) -> None:
        super().__init__()
        self.min_clients = min_clients
        self._changed = 0.0

    @override
    def new_sums(self, tensors: dict[str, Tensor], partial: Collection[str]) -> OverlapSums:
        return _CountingSums(tensors, partial)

    @override
    def weight(self, update: ClientUpdate, name: str) -> float:
        """Returns the examples that went through the tensor's operator on the client, |D_{i,o}|."""
        report = update.result.report(OperatorReport)
        assert report is not None
        through = report.through(name)
        return float(update.result.num_seen if through is None else through)

    @override
    def add(self, update: ClientUpdate) -> None:
        super().add(update)
        sums = self._sums_of(update)
        assert isinstance(sums, _CountingSums)
        for name, region in self._supernet.regions(update.task.arch).items():
            if self.weight(update, name):
                sums.count(region)

    @override
    def finish(self, rejected: Collection[Any] = ()) -> dict[str, Tensor]:
        sums = self._accepted(rejected)
        assert isinstance(sums, _CountingSums)
        self._changed = sums.drop_weights_below(self.min_clients)
        return sums.averages(self._all[0])

    @override
    def metrics(self) -> dict[str, float]:
        """Returns ``aggregation/changed``: the share of the shared tensors that were not kept as they were."""
        return {"aggregation/changed": self._changed}
