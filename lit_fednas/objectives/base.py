"""What a client optimises locally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lit_fednas.data import ClientData
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet


class Objective(ABC):
    """The local loss.

    One fit is :meth:`begin`, :meth:`loss` once per batch, :meth:`report`. One fit runs at a time, so what a
    method must remember during a fit may be kept in attributes.

    Attributes:
        stackable: Whether :meth:`loss` may run under ``torch.vmap`` for several clients at once: it keeps
            nothing between calls, draws nothing, and needs neither :meth:`begin` nor :meth:`report`, which are
            not called then. A subclass that defines one of the three says it anew; if it does not, it is False.
        compilable: Whether :meth:`loss` runs the network by calling it, which is what ``client.compile`` compiles.
    """

    stackable: ClassVar[bool] = False
    compilable: ClassVar[bool] = True

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        own = vars(cls)
        if "stackable" not in own and any(name in own for name in ("begin", "loss", "report")):
            cls.stackable = False

    def setup(self, supernet: Supernet, clients: ClientData) -> None:  # noqa: B027
        """Called once before training.

        Args:
            supernet: What the clients' networks are taken out of.
            clients: The clients' data; a fit may look at its own client's alone.

        Raises:
            ConfigError: The objective cannot work with it.
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
        """What the server shall know beside the weights; plain numbers and tensors, counted by nobody.

        Two keys have a meaning elsewhere: ``macs``, what the forward passes took altogether, where not every
        batch went through all that the client received; and ``operators``, how many examples went through each
        (:meth:`Supernet.operator_of`).
        """
        return {}
