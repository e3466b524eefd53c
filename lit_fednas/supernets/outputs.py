"""Networks that say more than one thing of an example."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class OutputsNetwork(nn.Module, ABC):
    """A network with several outputs: early exits, or networks side by side.

    Its ``forward`` is what it says in the end; :meth:`outputs` is all that an objective may train.
    """

    @abstractmethod
    def outputs(self, x: Tensor) -> list[Tensor]:
        """All outputs in one pass, each ``[batch, num_classes]``; of exits the last is the network's own."""
