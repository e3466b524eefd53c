"""Federated averaging in hand-written PyTorch: the baseline of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import cross_entropy

from benchmarks.tasks import Setting
from lit_fednas.data import Examples
from lit_fednas.rng import address_seed, generator, numpy_generator
from lit_fednas.supernets import Supernet


class PlainLoop:
    """Federated averaging of one architecture, by default the largest.

    Several processes share the cohort round-robin and add up their sums with one ``all_reduce`` of a flat buffer.
    Its last element is the loss.
    """

    def __init__(self, setting: Setting, net: Supernet, data: Examples, arch: Any = None) -> None:
        self.setting = setting
        self.images, self.targets = data.inputs, data.targets
        self.network = net.subnet(net.space.largest if arch is None else arch).train()
        self.params: list[Tensor] = list(self.network.parameters())
        self._global, self.weights = self._flat()
        self._sum, self._sums = self._flat()
        self.adopt([param.detach() for param in self.params])

    def _flat(self) -> tuple[Tensor, list[Tensor]]:
        """Returns a buffer for all weights and the loss, and the weights' views of it."""
        sizes = [param.numel() for param in self.params]
        buffer = torch.zeros(sum(sizes) + 1, device=self.params[0].device)
        parts = buffer.split([*sizes, 1])[:-1]
        return buffer, [part.view_as(param) for part, param in zip(parts, self.params, strict=True)]

    def adopt(self, weights: Sequence[Tensor]) -> None:
        """Replaces the global weights."""
        torch._foreach_copy_(self.weights, list(weights))

    def round(self, number: int) -> None:
        """Trains the clients of a cohort one by one and averages their weights."""
        setting = self.setting
        draws = numpy_generator(setting.seed, "cohort", number)
        cohort = sorted(draws.choice(setting.clients, size=setting.cohort, replace=False).tolist())
        total = sum(setting.sizes[client] for client in cohort)
        is_distributed = distributed.is_initialized()
        local_clients = cohort[distributed.get_rank() :: distributed.get_world_size()] if is_distributed else cohort
        self._sum.zero_()
        for client in local_clients:
            share = setting.sizes[client] / total
            loss = self.train_client(number, client)
            with torch.no_grad():
                torch._foreach_add_(self._sums, self.params, alpha=share)
                self._sum[-1] += loss * share
        if is_distributed:
            distributed.all_reduce(self._sum)
        self._global, self._sum = self._sum, self._global
        self.weights, self._sums = self._sums, self.weights
        self.loss = float(self._global[-1])

    def train_unit(self, unit: int) -> None:
        """Trains the next client, each unit in a new round."""
        self.train_client(unit, unit % self.setting.clients)

    def train_client(self, number: int, client: int) -> Tensor:
        """Trains the network for one epoch from the global weights; returns the mean loss."""
        setting = self.setting
        size, start = setting.sizes[client], setting.starts[client]
        torch.manual_seed(address_seed(setting.seed, "client", number, client))  # dropout
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.weights)
        optimizer = torch.optim.SGD(self.params, lr=setting.lr)
        draws = generator(setting.seed, "batches", number, client, 0)
        rows = torch.randperm(size, generator=draws).add_(start).to(setting.device)
        images = self.images.index_select(0, rows).to(torch.float32).mul_(1 / 255)
        targets = self.targets.index_select(0, rows)
        loss_sum = torch.zeros((), device=setting.device)
        for inputs, labels in zip(images.split(setting.batch_size), targets.split(setting.batch_size), strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(self.network(inputs), labels)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(labels)
        return loss_sum / size
