"""The contract of objectives, the plain losses, and the states that clients keep between fits."""

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
from lit_fednas.messages import ClientResult, ClientState, ClientTask, Statistics
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Objective(Part, ABC):
    """The local loss.

    One fit calls :meth:`begin`, :meth:`loss` once per batch, :meth:`statistics`, :meth:`client_state` and :meth:`end`.
    Fits run one at a time, so an objective may store values of a fit in attributes.

    Attributes:
        stackable: Whether :meth:`loss` may run under ``torch.vmap`` for several clients at once. Then it must not
            store or draw anything, and the fit's other methods are not called. It is False in a subclass that overrides
            any of the five methods, unless the subclass sets it.
        compilable: Whether :meth:`loss` calls the whole network, which ``client.compile`` compiles.
        testable: Whether a client's network makes predictions by itself, so that ``client.validate`` can test it.
        statistics_types: The types of the statistics that :meth:`statistics` returns.
        data_task: The task that defines the targets; :meth:`setup` sets it to that of the clients' data.
        state: The client's state on the network's device, set before :meth:`begin`: the result of :meth:`client_state`
            in its last accepted fit, with tensors of that fit's architecture; empty if there is none.
    """

    field: ClassVar[str] = "model.objective"
    stackable: ClassVar[bool] = False
    compilable: ClassVar[bool] = True
    testable: ClassVar[bool] = True
    statistics_types: ClassVar[tuple[type[Statistics], ...]] = ()
    data_task: Task = Classification(2)
    state: ClientState = MappingProxyType({})

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        steps = {"begin", "loss", "statistics", "client_state", "end"}
        if "stackable" not in vars(cls) and not steps.isdisjoint(vars(cls)):
            cls.stackable = False

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Prepares for a run.

        Args:
            supernet: The shared weights.
            clients: The clients' data; a fit may read only the data of its client.

        Raises:
            ConfigError: The objective does not work with the supernet.
        """
        self.check_supernet(supernet)
        self._supernet: Any = supernet
        self.data_task = clients.task

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Prepares a fit, with the received weights; all random choices of the fit use the generator."""

    @abstractmethod
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss of one batch, a scalar.

        Args:
            network: The client's network.
            inputs: The batch's examples, ``[batch, ...]``.
            targets: The task's targets, ``[batch, ...]``.
        """

    def statistics(self) -> tuple[Statistics, ...]:
        """Returns the statistics that the server needs besides weights and figures, at most one of each type."""
        return ()

    def client_state(self) -> ClientState | None:
        """Returns the state for this client's next fit, which may run on another machine.

        It is called after :meth:`statistics`, with the trained weights. If the update counts, the state is saved
        beside the checkpoints, or by a remote client. Stateful objectives train clients one by one, once per round.

        Returns:
            Tensors, numbers and texts by name, which are copied; ``None`` keeps :attr:`state` unchanged.
        """
        return None

    def end(self, network: nn.Module) -> None:
        """Ends a fit, even if :meth:`begin` failed: frees tensors, removes hooks, restores the weights to send."""

    def check_result(self, result: ClientResult) -> None:
        """Raises ``ValueError`` if no fit of the task gives these statistics of a remote client (of valid types)."""


class TaskLoss(Objective):
    """The loss of the data's task, such as cross-entropy for classes (``lit_fednas.data.tasks``).

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
        label_smoothing: The share of each target that is spread over all classes, from 0 to 1.

    Raises:
        ConfigError: The data's task has no classes (before training).
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


#: The states of an objective and its inner objectives, by path: ``""``, ``"objective"``, ``"objective.objective"``.
ClientStates = Mapping[str, ClientState]


def keeps_state(objective: Objective) -> bool:
    """Returns whether the objective or an inner objective keeps a state of each client."""
    return any(type(part).client_state is not Objective.client_state for _, part in _parts(objective))


def give_state(objective: Objective, states: ClientStates, device: torch.device | None = None) -> None:
    """Sets ``state`` of the objective and its inner objectives for the next fit; empty if there is no state yet."""
    for path, part in _parts(objective):
        values = states.get(path, {}).items()
        part.state = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values}


@torch.no_grad()
def collect_state(objective: Objective) -> ClientStates | None:
    """Returns copies of the states after a fit, on the CPU; ``None`` if all states are unchanged."""
    new_states = {path: (part, part.client_state()) for path, part in _parts(objective)}
    if all(state is None for _, state in new_states.values()):
        return None
    return {path: _copied(part, part.state if state is None else state) for path, (part, state) in new_states.items()}


def is_finite(states: ClientStates) -> bool:
    """Returns whether all numbers are finite."""
    values = [value for state in states.values() for value in state.values()]
    return all(
        bool(value.isfinite().all()) if isinstance(value, Tensor) else isinstance(value, str) or isfinite(value)
        for value in values
    )


def _parts(objective: Objective) -> Iterator[tuple[str, Objective]]:
    """Yields the objective and its inner objectives, with their paths."""
    path = ""
    part: Objective | None = objective
    while isinstance(part, Objective):
        yield path, part
        path, part = f"{path}.objective".lstrip("."), getattr(part, "objective", None)


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
