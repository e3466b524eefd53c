"""OPA, aggregation by operators: FedorAS' Eq. 5.

Every operator becomes the mean of its values at the clients, each weighted by the examples that went through that
operator there. The fixed layers count all examples, so a network without choices is averaged as by FedAvg (section
3.1). An operator that fewer than two clients have trained keeps its weights, so that no single client's update can
be read off the server's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_fednas.aggregation.buffers import FlatTensors
from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate
from lit_fednas.supernets import Supernet


class OperatorAverage(OverlapAverage):
    """Mean of an operator over the clients that trained it, weighted by the examples that went through it.

    Buffers are averaged as the weights of their operator. The examples come from the clients' reports
    (:class:`~lit_fednas.objectives.PathSampling`).

    Args:
        min_clients: Operators trained by fewer clients than this keep their weights (the paper: 2).

    Raises:
        ConfigError: ``min_clients`` is below 1.
    """

    def __init__(self, min_clients: int = 2) -> None:
        super().__init__()
        if min_clients < 1:
            raise ConfigError(f"aggregation.min_clients: {min_clients} must be at least 1")
        self.min_clients = min_clients
        self._changed = 0.0

    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Starts counting clients, per tensor, and per element of those that are shared in parts."""
        super().start(supernet, tasks)
        assert self._weights is not None
        self._changed = 0.0
        self._clients = torch.zeros(len(self._whole), dtype=torch.float64)
        self._clients_in_part = FlatTensors(self._weights, dict.fromkeys(self._weights, torch.float32))

    def weight(self, update: ClientUpdate, name: str) -> float:
        """The examples that went through the tensor's operator on the client, |D_{i,o}|."""
        operator = self._supernet.operator_of(name)
        if operator is None:
            return float(update.num_seen)
        if "operators" not in update.report:
            raise ConfigError(
                "model.aggregation: OperatorAverage needs to know how many examples went through each operator; "
                "set model.objective to PathSampling"
            )
        return float(update.report["operators"].get(operator, 0))

    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Adds the tensors that were trained, and counts their client."""
        super().add(update)
        for name, region in self._supernet.regions(update.task.arch).items():
            if self.weight(update, name) == 0:
                continue
            if region.name in self._whole:
                self._clients[self._whole[region.name]] += 1
            else:
                region.add_to(self._clients_in_part[region.name], 1.0, 1.0)

    def sums(self) -> list[Tensor]:
        """Also the numbers of clients."""
        return [*super().sums(), self._clients, *self._clients_in_part.buffers]

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Keeps the old weights of what too few clients have trained."""
        assert self._weights is not None
        self._whole_weights[self._clients < self.min_clients] = 0
        for name, weights in self._weights.items():
            weights.masked_fill_(self._clients_in_part[name] < self.min_clients, 0)
        changed = int((self._whole_weights > 0).sum())
        changed += sum(bool((weights > 0).any()) for weights in self._weights.values())
        self._changed = changed / (len(self._whole) + len(self._weights))
        return super().finish()

    def metrics(self) -> dict[str, float]:
        """``aggregation/changed``: the share of the shared tensors that were not kept as they were."""
        return {"aggregation/changed": self._changed}
