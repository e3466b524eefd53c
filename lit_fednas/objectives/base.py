"""What a client optimises locally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.messages import ClientTask


class Objective(ABC):
    """The local loss.

    One fit is :meth:`begin`, :meth:`loss` once per batch, :meth:`report`. One fit runs at a time, so what a
    method must remember during a fit may be kept in attributes.
    """

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:  # noqa: B027
        """Called before the first batch, with the weights as they were received.

        Args:
            network: The client's network.
            task: What it was asked.
            generator: For all random choices of this fit; addressed by seed, round and client.
        """

    @abstractmethod
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch, a scalar to minimise (the batch's mean).

        Args:
            network: The client's network.
            inputs: ``[batch, ...]``.
            targets: ``[batch]``.
        """

    def report(self) -> dict[str, Any]:
        """What the server shall know beside the weights; plain numbers and tensors, counted by nobody."""
        return {}
