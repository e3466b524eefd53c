"""A client's test of what it trains, on its own validation split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_fednas.data.clients import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator
from lit_fednas.supernets import Supernet

_BATCH = 512


class LocalTest:
    """Tests networks of the supernet's architectures, in evaluation mode.

    Args:
        supernet: What the architectures are of.
        data: All clients' data.

    Raises:
        ConfigError: No client has validation data.
    """

    def __init__(self, supernet: Supernet, data: ClientData) -> None:
        if not any(data.size(client, "val") for client in range(data.num_clients)):
            raise ConfigError(
                "client.validate: no client has validation data; set data.client_val, for instance to 0.2"
            )
        self.supernet = supernet
        self.data = data

    @torch.no_grad()
    def __call__(self, arch: Any, weights: Mapping[str, Tensor], client: int) -> tuple[float, int]:
        """Tests one network on one client.

        Args:
            arch: The architecture.
            weights: Its tensors, by their names in the subnet.
            client: The client.

        Returns:
            The share of right answers (NaN without examples), and the number of examples.
        """
        count = self.data.size(client, "val")
        if count == 0:
            return float("nan"), 0
        # in any order, not in that of the data: batches of single classes would mislead norms of batch statistics
        draws = generator(0, "local-test", client)
        right = 0
        for inputs, classes in self.data.batches(client, _BATCH, draws, split="val", augment=False):
            logits = self.supernet.run(arch, weights, inputs)
            right += int((logits.argmax(1) == self.supernet.targets(arch, classes)).sum())
        return right / count, count
