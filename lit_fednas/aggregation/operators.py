"""OPA, aggregation by operators: FedorAS' Eq. 5.

Every operator becomes the mean of its values at the clients, each weighted by the examples that went through that
operator there. The fixed layers count all examples, so a network without choices is averaged as by FedAvg (section
3.1). An operator that fewer than two clients have trained keeps its weights, so that no single client's update can
be read off the server's.

What this rule protects, and what not: a server's weights that come from one client are that client's own, to the last
digit, and such weights are not published. It is no differential privacy: nothing bounds a client's influence and no
noise is added. Of two clients, each can subtract its own update from the mean and has the other's; anybody can likewise
take the difference of two rounds whose cohorts differ in one client; and the server sees every update either way. For a
guarantee set ``privacy``, with an aggregation for which a bound is known (:mod:`~lit_fednas.aggregation.private`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.aggregation.sums import FlatTensors, OverlapSums, Sums
from lit_fednas.messages import ClientResult, ClientUpdate, OperatorReport
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets import Region


class _CountingSums(OverlapSums):
    """Sums that also count the clients which trained each tensor, or each element of those shared in parts."""

    def __init__(self, shared: Mapping[str, Tensor], partial: Collection[str], min_clients: int) -> None:
        super().__init__(shared, partial)
        self.min_clients = min_clients
        self.clients = torch.zeros(len(self.index), dtype=torch.float64)
        self.clients_in_part = FlatTensors(dict(self.weights), dict.fromkeys(self.weights, torch.float32))

    @override
    def reset(self, shared: Mapping[str, Tensor], partial: Collection[str]) -> bool:
        self.clients.zero_()
        self.clients_in_part.zero_()
        return super().reset(shared, partial)

    @torch.no_grad()
    @override
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        trained = [part for part in parts if part[2]]
        super().add(holder, trained)
        for region, _, _ in trained:
            if region.name in self.index:
                self.clients[self.index[region.name]] += 1
            else:
                region.add_to(self.clients_in_part[region.name], 1.0, 1.0)

    @override
    def merge(self, other: Self) -> None:
        super().merge(other)
        for name, number in other.index.items():
            self.clients[self.index[name]] += other.clients[number]
        for name, clients in other.clients_in_part.items():
            self.clients_in_part[name].add_(clients)

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*super().tensors, self.clients, *self.clients_in_part.buffers]

    @torch.no_grad()
    @override
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.whole_weights[self.clients < self.min_clients] = 0
        for name, weights in self.weights.items():
            weights.masked_fill_(self.clients_in_part[name] < self.min_clients, 0)
        return super().averages(shared)


@checked("aggregation")
class OperatorAverage(OverlapAverage):
    """Mean of an operator over the clients that trained it, weighted by the examples that went through it.

    Buffers are averaged as the weights of their operator. The examples come from the clients' reports
    (:class:`~lit_fednas.objectives.PathSampling`).

    Args:
        min_clients: Operators trained by fewer clients than this keep their weights (the paper: 2).
        trim: The share of an element's values that its mean leaves out at either end, as for
            :class:`OverlapAverage`.

    Raises:
        ConfigError: A setting is out of range, or the objective does not report the examples.
    """

    needs = (OperatorReport,)
    reads = ()

    def __init__(self, min_clients: PositiveInt = 2, trim: Trim = 0.0) -> None:
        super().__init__(trim=trim)
        self.min_clients = min_clients

    @override
    def new_sums(self, tensors: dict[str, Tensor], partial: Collection[str], holders: dict[str, list[Any]]) -> Sums:
        if self.trim:
            return super().new_sums(tensors, partial, holders)
        return _CountingSums(tensors, partial, self.min_clients)

    @override
    def weight(self, update: ClientUpdate, name: str) -> float:
        """Returns the examples that went through the tensor's operator on the client, |D_{i,o}|."""
        report = update.result.report(OperatorReport)
        assert report is not None
        through = report.through(name)
        return float(update.result.num_seen if through is None else through)

    @override
    def metrics(self, results: Sequence[ClientResult]) -> dict[str, float]:
        """Returns which operators changed, and how far their clients' weights are from a plain average's.

        ``aggregation/changed`` is the share of the supernet's operators with weights that were trained by
        ``min_clients`` clients or more; the others keep their weights. ``aggregation/total_variation`` is the mean
        over the changed ones of ``sum_i |p_i - q_i| / 2``, from 0 (alike) to 1: p_i is client i's weight by Eq. 5
        before any trimming, q_i its weight in the plain average, by the examples of all clients that received the
        operator (:class:`OverlapAverage`).
        """
        held: dict[str, list[tuple[int, int]]] = {name: [] for name in self._operators(self._supernet.space.superset)}
        for result in results:
            report = result.report(OperatorReport)
            assert report is not None
            for name in self._operators(result.task.arch):
                held[name].append((report.examples.get(name, 0), result.task.num_examples))
        distances = []
        for clients in held.values():
            through, examples = np.array(clients, dtype=float).reshape(-1, 2).T
            if np.count_nonzero(through) >= self.min_clients:
                distances.append(np.abs(through / through.sum() - examples / examples.sum()).sum() / 2)
        metrics = {"aggregation/changed": len(distances) / len(held)} if held else {}
        return metrics | ({"aggregation/total_variation": float(np.mean(distances))} if distances else {})

    def _operators(self, arch: Any) -> list[str]:
        """Returns the operators of an architecture that have weights, by the names of their modules."""
        names = map(OperatorReport.operator, self._supernet.regions(arch))
        return list(dict.fromkeys(name for name in names if name is not None))
