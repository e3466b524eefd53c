"""The contract of objectives: what a client optimises locally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lit_fednas.data import Classification, ClientData, Task
from lit_fednas.messages import ClientResult, ClientTask, Report
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Objective(Part, ABC):
    """The local loss.

    One fit is :meth:`begin`, :meth:`loss` once per batch, :meth:`report`. One fit runs at a time, so what a
    method must remember during a fit may be kept in attributes.

    Attributes:
        stackable: Whether :meth:`loss` may run under ``torch.vmap`` for several clients at once: it keeps
            nothing between calls, draws nothing, and needs neither :meth:`begin` nor :meth:`report`, which are
            not called then. It is False in a subclass that defines one of the three and does not set it.
        compilable: Whether :meth:`loss` runs the network by calling it, which is what ``client.compile`` compiles.
        report_types: The types of what :meth:`report` returns.
        data_task: What targets are; that of the clients' data after :meth:`setup`.
    """

    field: ClassVar[str] = "model.objective"
    stackable: ClassVar[bool] = False
    compilable: ClassVar[bool] = True
    report_types: ClassVar[tuple[type[Report], ...]] = ()
    data_task: Task = Classification(2)

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        own = vars(cls)
        if "stackable" not in own and any(name in own for name in ("begin", "loss", "report")):
            cls.stackable = False

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Prepares for a run.

        Args:
            supernet: The shared weights.
            clients: The clients' data; a fit may read only its own client's.

        Raises:
            ConfigError: The objective does not work with the supernet.
        """
        self.check_supernet(supernet)
        self._supernet: Any = supernet
        self.data_task = clients.task

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Called before the first batch, with the weights as they were received.

        Args:
            network: The client's network.
            task: The client's task.
            generator: For all random choices of this fit; addressed by seed, round and client.
        """

    @abstractmethod
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch, a scalar to minimise (the mean over the batch's units).

        Args:
            network: The client's network.
            inputs: ``[batch, ...]``.
            targets: ``[batch, ...]``, of the task.
        """

    def report(self) -> tuple[Report, ...]:
        """Returns what the server needs besides weights and figures, at most one report of each type."""
        return ()

    def check_result(self, result: ClientResult) -> None:
        """Validates the reports of a client on another machine, which may send anything, by its task and its figures.

        Args:
            result: Whose reports are those of :attr:`report_types`, each with values of its fields' types.

        Raises:
            ValueError: No fit of the task reports this.
        """
