"""The contract of objectives: what a client optimises locally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lit_fednas.data import Classification, ClientData, Task
from lit_fednas.messages import ClientResult, ClientState, ClientTask, Report
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Objective(Part, ABC):
    """The local loss.

    One fit is :meth:`begin`, :meth:`loss` once per batch, :meth:`report`, :meth:`client_state`. One fit runs at a time,
    so what a method needs during a fit may be kept in attributes. What it needs at the same client's next fit is
    returned by :meth:`client_state`, and is then :attr:`state`: the engine keeps it on disk beside the checkpoints,
    and only if the client's update counts. (Over devices each device keeps its own.)

    Attributes:
        stackable: Whether :meth:`loss` may run under ``torch.vmap`` for several clients at once: it keeps
            nothing between calls, draws nothing, and needs neither :meth:`begin` nor :meth:`report` nor
            :meth:`client_state`, which are not called then. It is False in a subclass that defines one of the four
            and does not set it.
        compilable: Whether :meth:`loss` runs the network by calling it, which is what ``client.compile`` compiles.
        testable: Whether a client's network answers by itself, so that ``client.validate`` can test it.
        report_types: The types of what :meth:`report` returns.
        data_task: What targets are; that of the clients' data after :meth:`setup`.
        state: What :meth:`client_state` returned after the client's last fit whose update counted, on the device of the
            network, set before :meth:`begin`; empty at first. Its tensors are of the architecture of that fit.
    """

    field: ClassVar[str] = "model.objective"
    stackable: ClassVar[bool] = False
    compilable: ClassVar[bool] = True
    testable: ClassVar[bool] = True
    report_types: ClassVar[tuple[type[Report], ...]] = ()
    data_task: Task = Classification(2)
    state: ClientState = MappingProxyType({})

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        own = vars(cls)
        if "stackable" not in own and any(name in own for name in ("begin", "loss", "report", "client_state")):
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

    def client_state(self) -> ClientState | None:
        """Returns what the objective needs at this client's next fit, which may be on another machine.

        It is called after :meth:`report`, with the weights as they were trained, and its tensors are copied. An
        objective that defines it trains clients one by one, and one task of each per round.

        Returns:
            Tensors, numbers and texts by name; ``None`` keeps :attr:`state` as it is.
        """
        return None

    def check_result(self, result: ClientResult) -> None:
        """Validates the reports of a client on another machine, which may send anything, by its task and its figures.

        Args:
            result: Whose reports are those of :attr:`report_types`, each with values of its fields' types.

        Raises:
            ValueError: No fit of the task reports this.
        """
