"""The contract of objectives, the plain losses, and what is kept of each client between its fits."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import Classification, ClientData, Task
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientState, ClientTask, Report
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Objective(Part, ABC):
    """The local loss.

    One fit is :meth:`begin`, :meth:`loss` once per batch, :meth:`report`, :meth:`client_state`, :meth:`end`. One fit
    runs at a time, so an objective may keep what it needs in attributes.

    Attributes:
        stackable: Whether :meth:`loss` may run under ``torch.vmap`` for several clients at once: it keeps and draws
            nothing, and the other methods are not called. It is False in a subclass that defines one of the five
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
        if "stackable" not in own and any(name in own for name in ("begin", "loss", "report", "client_state", "end")):
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

        All random choices of the fit are drawn from the generator, which is addressed by seed, round and client.
        """

    @abstractmethod
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss of one batch, a scalar.

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

        It is called after :meth:`report`, with the weights as they were trained, and kept on disk beside the
        checkpoints (by each remote client itself) if the client's update counts. An objective that defines it trains
        clients one by one, and one task of each per round.

        Returns:
            Tensors, numbers and texts by name, which are copied; ``None`` keeps :attr:`state` as it is.
        """
        return None

    def end(self, network: nn.Module) -> None:
        """Ends a fit, also one that failed, even in :meth:`begin`: frees tensors, removes hooks, restores weights.

        Args:
            network: The client's network, whose weights are sent after this.
        """

    def check_result(self, result: ClientResult) -> None:
        """Raises ``ValueError`` if no fit of the task gives a remote client's reports, which have the right types."""


class TaskLoss(Objective):
    """The loss of the data's task, as it is: cross-entropy for classes (``lit_fednas.data.tasks``).

    Example:
        >>> float(TaskLoss().loss(nn.Identity(), torch.zeros(1, 4), torch.tensor([2])))  # log 4
        1.3862943649291992
    """

    stackable = True

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.data_task.loss(network(inputs), targets)


class CrossEntropy(Objective):
    """Cross-entropy of the network's logits, with label smoothing.

    Args:
        label_smoothing: As in ``torch.nn.functional.cross_entropy``.

    Raises:
        ConfigError: Before training: the task of the data has no classes.
    """

    stackable = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        if not isinstance(clients.task, Classification):
            raise ConfigError(
                f"model.objective: {type(self).__name__} needs classes, and the data's task is "
                f"{type(clients.task).__name__}; use TaskLoss"
            )

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return cast(Classification, self.data_task).loss(network(inputs), targets, self.label_smoothing)


#: What an objective and those inside it keep, by their place: ``""``, ``"objective"``, ``"objective.objective"``.
ClientStates = Mapping[str, ClientState]


def keeps_state(objective: Objective) -> bool:
    """Returns whether the objective, or one inside it, keeps a state of each client."""
    return any(type(part).client_state is not Objective.client_state for _, part in _parts(objective))


def give_state(objective: Objective, states: ClientStates, device: torch.device | None = None) -> None:
    """Sets ``state`` of the objective and of those inside it, for the next fit; empty if nothing is kept yet."""
    for place, part in _parts(objective):
        part.state = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in states.get(place, {}).items()
        }


@torch.no_grad()
def collect_state(objective: Objective) -> ClientStates | None:
    """Returns copies of what is to be kept after a fit, on the CPU; ``None`` if everything stays as it was."""
    new = {place: (part, part.client_state()) for place, part in _parts(objective)}
    if all(state is None for _, state in new.values()):
        return None
    return {place: _copied(part, part.state if state is None else state) for place, (part, state) in new.items()}


def is_finite(states: ClientStates) -> bool:
    """Returns whether all numbers are finite."""
    values = [value for state in states.values() for value in state.values()]
    return all(
        bool(value.isfinite().all()) if isinstance(value, Tensor) else isinstance(value, str) or isfinite(value)
        for value in values
    )


def _parts(objective: Objective) -> Iterator[tuple[str, Objective]]:
    """Yields the objective and those inside it, with their places."""
    place = ""
    part: Objective | None = objective
    while isinstance(part, Objective):
        yield place, part
        place, part = f"{place}.objective".lstrip("."), getattr(part, "objective", None)


def _copied(part: Objective, state: ClientState) -> ClientState:
    """Returns a copy that ``torch.load(weights_only=True)`` reads."""
    for name, value in state.items():
        if not isinstance(value, Tensor) and type(value) not in (bool, int, float, str):
            raise ConfigError(
                f"model.objective: {type(part).__name__}.client_state returns a {type(value).__name__} for {name!r}, "
                f"which cannot be saved; return tensors, numbers and texts"
            )
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
