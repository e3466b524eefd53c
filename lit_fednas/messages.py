"""The messages between the server and its clients.

A round sends a :class:`ClientTask` down and receives a :class:`ClientUpdate`: the trained weights, and a
:class:`ClientResult` with the outcome of the fit. Data that only some methods need are :class:`Statistics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, nan
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

R = TypeVar("R", bound="Statistics")
#: An objective's state of a client between its fits, by name.
ClientState = Mapping[str, Tensor | float | str]

DROPPED = "dropped"  #: The status of a client that left the round.
AWAY = "away"  #: The status of a client that was absent when the round began, and received nothing.
WITHHELD = "withheld"  #: The status of an update that the server rejected before it was sent.
WILD = "wild"  #: The status of an update that was rejected because of its norm.


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of tensors as they are sent: elements times element size."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class ClientTask:
    """The server's task for one client in one round."""

    round: int  # the round's number, which starts at 0
    client: int  # the client's number in the population
    arch: Any  # the architecture that the client receives and trains
    num_examples: int  # the client's training examples (n_k)
    lr_factor: float = 1.0  # factor of the local learning rate, from the round's schedule
    tier: str = ""  # the name of the client's device tier; empty without tiers
    limits: Mapping[str, float] = field(default_factory=dict)  # the highest cost of an example's forward pass, by cost
    unsupported: tuple[str, ...] = ()  # operators that the client cannot run
    group: int | None = None  # clients of a group begin their next task when all have finished the previous one
    steps: int | None = None  # steps of the local optimizer; None: those of client.steps or client.epochs

    @property
    def key(self) -> tuple[int, Any]:
        """The client and the architecture, which identify the task in its round."""
        return self.client, self.arch


@dataclass(frozen=True)
class Statistics:
    """Data of a method that clients send beside weights and figures; a method subclasses it.

    Fields are numbers, and mappings or sequences of numbers, so that all statistics can be validated, written and read
    in the same way. Integers are counts, and not negative.
    """

    @property
    def finite(self) -> bool:
        """True if all numbers are finite."""
        return all(map(isfinite, self.numbers))

    @property
    def numbers(self) -> Iterator[float]:
        """All numbers in the fields."""
        return _numbers(asdict(self))

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Restores statistics from ``asdict``; raises ValueError if a value is missing or not of its field's type."""
        types = get_type_hints(cls)
        if values.keys() != types.keys():
            raise ValueError(f"{cls.__name__} of {', '.join(values)}")
        for name, value in values.items():
            if not _is_of(value, types[name]):
                raise ValueError(f"{name}: {value!r} is not of its type")
        return cls(**values)


@dataclass(frozen=True)
class MacsStatistics(Statistics):
    """The multiply-accumulates of all forward passes of a fit in which not every batch used the whole network."""

    macs: int


@dataclass(frozen=True)
class OperatorStatistics(Statistics):
    """The examples that went through each operator of a path supernet, by its module's name (FedorAS, Eq. 5)."""

    examples: Mapping[str, int]

    def through(self, tensor: str) -> int | None:
        """Returns the examples that went through a tensor of the client's network; ``None`` for all of them."""
        operator = self.operator(tensor)
        return None if operator is None else self.examples.get(operator, 0)

    @staticmethod
    def operator(tensor: str) -> str | None:
        """Returns the name of the operator's module with a tensor, such as ``layers.3.sep_e1``, or ``None``."""
        parts = tensor.split(".")
        return ".".join(parts[:3]) if parts[0] == "layers" else None


@dataclass(frozen=True)
class ClassStatistics(Statistics):
    """The classes of a client's training examples, ascending (HeteroFL's masked aggregation)."""

    classes: Sequence[int]


@dataclass(frozen=True)
class UnitChangeStatistics(Statistics):
    """The relative change of each unit in a client's training, by group of units (FLuID)."""

    changes: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class ClientResult:
    """The outcome of a client's part in a round, for logs, costs and assignment.

    The status is ``ok``, or the reason why no update is used: ``error``, ``non-finite``, ``timeout``, ``dropped`` (the
    client left), ``away`` (it was absent when the round began), ``empty`` (no batch to train on), ``withheld`` (the
    server rejected the update) or ``wild`` (the server rejected its norm).
    """

    task: ClientTask
    status: str = "ok"
    reason: str = ""  # one line for the log; empty after success
    num_steps: int = 0  # steps of the optimizer
    num_seen: int = 0  # examples that went through the network, with repetitions
    num_units: int = 0  # the count of the loss: these examples, or their tokens
    loss: float = float("nan")  # mean local training loss over this count
    seconds: float = 0.0  # wall time of the fit
    statistics: tuple[Statistics, ...] = ()  # the objective's statistics, at most one of each type
    tested: Mapping[str, float] = field(default_factory=dict)  # metrics on the client's own validation split, if tested
    num_tested: int = 0  # examples of this split, if tested
    num_tested_units: int = 0  # the count of the metrics: these examples, or their tokens

    @property
    def ok(self) -> bool:
        """True if the update is used."""
        return self.status == "ok"

    @property
    def sent(self) -> bool:
        """True if the server has received an update."""
        return self.status in ("ok", WILD)

    @property
    def answered(self) -> bool:
        """True if the client has done its task, also if its update was rejected."""
        return self.status in ("ok", WITHHELD)

    def rejected(self, status: str, reason: str = "") -> ClientResult:
        """Returns the result with the status of a rejected update: :data:`WITHHELD` or :data:`WILD`."""
        return replace(self, status=status, reason=reason or self.reason)

    def find(self, kind: type[R]) -> R | None:
        """Returns the statistics of a type, if there are any."""
        return next((item for item in self.statistics if isinstance(item, kind)), None)


def mean_loss(results: Iterable[ClientResult]) -> float:
    """Returns the mean training loss over all examples or tokens that clients trained on; NaN without any."""
    return _mean((result.loss, result.num_units) for result in results)


def mean_tested(results: Iterable[ClientResult], name: str) -> float:
    """Returns the mean of a metric over all examples or tokens that clients were tested on; NaN without any."""
    return _mean((result.tested[name], result.num_tested_units) for result in results if result.num_tested_units)


def _mean(weighted: Iterable[tuple[float, int]]) -> float:
    values = [(value, weight) for value, weight in weighted if weight]
    return sum(value * weight for value, weight in values) / (sum(weight for _, weight in values) or nan)


@dataclass(frozen=True)
class ClientUpdate:
    """A client's answer to a task.

    The weights are the client network's own tensors, by their names in the subnet, not copies: they are valid until the
    next client is trained, so aggregate at once. The state is the new state of the objective and of those inside it,
    by their path, if the update counts. It is never sent, and ``None`` if nothing changes.
    """

    result: ClientResult
    weights: Mapping[str, Tensor]
    state: Mapping[str, ClientState] | None = None

    @property
    def task(self) -> ClientTask:
        """The task of the update."""
        return self.result.task


class RoundValues(dict[type, Any]):
    """Values of one round by type, which callbacks give to the parts of a method."""

    def give(self, value: Any) -> None:
        """Sets the round's value of this type."""
        self[type(value)] = value


@dataclass(frozen=True)
class Largest:
    """The architecture that counts as the largest in a round, if an assignment chooses one."""

    arch: Any


def _numbers(value: Any) -> Iterator[float]:
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(items, Iterable):
        for item in items:
            yield from _numbers(item)
    else:
        yield items


def _is_of(value: Any, hint: Any) -> bool:
    """Returns whether a plain value has a statistics field's type; true for other types."""
    parts = get_args(hint)
    if get_origin(hint) is Mapping:
        return isinstance(value, Mapping) and all(_is_of(item, parts[1]) for item in value.values())
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(_is_of(item, parts[0]) for item in value)
    if hint not in (int, float):
        return True
    number = isinstance(value, int | hint) and not isinstance(value, bool)
    return number and (hint is float or value >= 0)
