"""What passes between the server and its clients.

A round sends a :class:`ClientTask` down and gets a :class:`ClientUpdate` back: the trained weights, and a
:class:`ClientResult` that says how it went. What a method needs to know beside that is a :class:`Report`, a frozen
dataclass of its own. Bytes are counted here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

R = TypeVar("R", bound="Report")
V = TypeVar("V")
#: What an objective keeps of a client until its next fit: tensors, numbers and texts by name.
ClientState = Mapping[str, Tensor | float | str]

#: The status of a result of a client that went away.
DROPPED = "dropped"
#: The status of a result whose update the server rejected before it was sent.
WITHHELD = "withheld"

#: The status of a result whose update was rejected since its norm stands out.
WILD = "wild"

#: What the reason begins with where an update is used whose norm stood out.
SCALED = "the update is scaled down"


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of tensors as they are sent: elements times element size.

    Example:
        >>> import torch
        >>> nbytes([torch.zeros(2, 3), torch.zeros(5, dtype=torch.uint8)])
        29
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class ClientTask:
    """What the server asks of one client in one round.

    Attributes:
        round: The round, from 0.
        client: The client's number in its population.
        arch: The architecture whose weights the client receives and trains.
        num_examples: The client's training examples (n_k).
        lr_factor: What the round's schedule multiplies the local learning rate with.
        tier: The name of the client's device tier; empty if there are no tiers.
        limits: The highest cost of one example's forward pass on the client, by cost.
        unsupported: Operators that the client cannot run.
        group: The group of clients that the client trains in, where clients are grouped: a group begins its next
            task when all its clients have finished the one before.
    """

    round: int
    client: int
    arch: Any
    num_examples: int
    lr_factor: float = 1.0
    tier: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    group: int | None = None


@dataclass(frozen=True)
class Report:
    """What a method's clients tell the server beside weights and figures; a method subclasses it.

    Fields are numbers, and mappings or sequences of numbers, so that all reports can be added up, weighted,
    written and read alike. Integers are counts: not negative.

    Example:
        >>> MacsReport(3) + MacsReport(4), MacsReport(3).scaled(2)
        (MacsReport(macs=7), MacsReport(macs=6))
        >>> MacsReport.from_plain(MacsReport(3).to_plain())
        MacsReport(macs=3)
    """

    def __add__(self, other: Self) -> Self:
        return type(self)(*(_add(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)))

    def scaled(self, factor: float) -> Self:
        """Returns the report with all its numbers multiplied by a factor."""
        return type(self)(*(_scale(getattr(self, one.name), factor) for one in fields(self)))

    @property
    def finite(self) -> bool:
        """Whether all its numbers are finite."""
        return all(map(isfinite, self.numbers))

    @property
    def numbers(self) -> Iterator[float]:
        """All its numbers."""
        for one in fields(self):
            yield from _numbers(getattr(self, one.name))

    def to_plain(self) -> dict[str, Any]:
        """Returns numbers, lists and dictionaries alone."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Restores a report.

        Args:
            values: What :meth:`to_plain` returned.

        Returns:
            The report.

        Raises:
            ValueError: A value is missing, or not of its field's type.
        """
        types = get_type_hints(cls)
        if values.keys() != types.keys():
            raise ValueError(f"{cls.__name__} of {', '.join(values)}")
        for name, value in values.items():
            if not _is_of(value, types[name]):
                raise ValueError(f"{name}: {value!r} is not of its type")
        return cls(**values)


@dataclass(frozen=True)
class MacsReport(Report):
    """The computation of a fit in which not every batch went through all that the client received.

    Attributes:
        macs: Multiply-accumulates of all forward passes.
    """

    macs: int


@dataclass(frozen=True)
class OperatorReport(Report):
    """How much each operator of a path supernet was trained (FedorAS, Eq. 5).

    Attributes:
        examples: The examples that went through each operator, by the name of its module, ``layers.3.sep_e1``.
    """

    examples: Mapping[str, int]

    def through(self, tensor: str) -> int | None:
        """Returns the examples that went through a tensor of the client's network; ``None`` for all of them.

        Args:
            tensor: The tensor's name; what does not lie in an operator is trained by every example.
        """
        operator = self.operator(tensor)
        return None if operator is None else self.examples.get(operator, 0)

    @staticmethod
    def operator(tensor: str) -> str | None:
        """Returns the name of the operator's module that a tensor lies in; ``None`` for a fixed part's tensor.

        Example:
            >>> OperatorReport.operator("layers.3.sep_e1.0.weight"), OperatorReport.operator("stem.0.weight")
            ('layers.3.sep_e1', None)
        """
        parts = tensor.split(".")
        return ".".join(parts[:3]) if parts[0] == "layers" else None


@dataclass(frozen=True)
class ClassesReport(Report):
    """The classes of which a client has training examples (HeteroFL's masked aggregation).

    Attributes:
        classes: Their numbers, ascending.
    """

    classes: Sequence[int]


@dataclass(frozen=True)
class UnitChangesReport(Report):
    """How much each unit changed in a client's training (FLuID).

    Attributes:
        changes: Per group of units the relative change of each unit.
    """

    changes: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class ClientResult:
    """How a client's part in a round went, for logs, costs and assignment.

    Attributes:
        task: The task.
        status: ``"ok"``, or why there is no update: ``"error"``, ``"non-finite"``, ``"timeout"``,
            ``"dropped"`` (it went away), ``"empty"`` (no batch to train on), ``"withheld"`` (all went well, but
            the server rejected the update), ``"wild"`` (its norm stands out, so it is not used).
        reason: One line for the log; empty when all went well.
        num_steps: Optimizer steps taken.
        num_seen: Examples that went through the network, repetitions counted.
        loss: Mean local training loss over those examples (over their tokens, if the task is on tokens); NaN without an
            update.
        seconds: Wall time of the fit.
        reports: What the objective reported, at most one of each type.
        tested: What the task averages, on the client's own validation split; empty where it was not tested.
        num_tested: Examples that it was tested on.
    """

    task: ClientTask
    status: str = "ok"
    reason: str = ""
    num_steps: int = 0
    num_seen: int = 0
    loss: float = float("nan")
    seconds: float = 0.0
    reports: tuple[Report, ...] = ()
    tested: Mapping[str, float] = field(default_factory=dict)
    num_tested: int = 0

    @property
    def accuracy(self) -> float:
        """The accuracy among :attr:`tested`; NaN if there is none."""
        return self.tested.get("accuracy", float("nan"))

    @property
    def ok(self) -> bool:
        """Whether the update is used."""
        return self.status == "ok"

    @property
    def sent(self) -> bool:
        """Whether an update has come to the server."""
        return self.status in ("ok", WILD)

    @property
    def answered(self) -> bool:
        """Whether the client has done what it was asked, also if its update was rejected."""
        return self.status in ("ok", WITHHELD)

    def rejected(self, status: str, reason: str = "") -> ClientResult:
        """Returns the result of a client whose update is not used after all.

        Args:
            status: :data:`WITHHELD` or :data:`WILD`.
            reason: One line for the log.
        """
        return replace(self, status=status, reason=reason or self.reason)

    def report(self, kind: type[R]) -> R | None:
        """Returns the report of a type, if there is one."""
        return next((report for report in self.reports if isinstance(report, kind)), None)


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back.

    Attributes:
        result: How it went.
        weights: The subnet's tensors after training, by their names in the subnet. They are the client
            network's own tensors, not copies, and hold until the next client is trained: aggregate at once.
        state: What the objective, and those inside it, keep of the client if the update counts, by their place; it is
            never sent. ``None`` if nothing changes.
    """

    result: ClientResult
    weights: Mapping[str, Tensor]
    state: Mapping[str, ClientState] | None = None

    @property
    def task(self) -> ClientTask:
        """The task that it answers."""
        return self.result.task


class RoundValues:
    """Values that hold for one round, each of a type of its own: what schedules give to the parts of a method.

    Example:
        >>> values = RoundValues()
        >>> values.give(MacsReport(3))
        >>> values.get(MacsReport), values.get(ClassesReport)
        (MacsReport(macs=3), None)
    """

    def __init__(self) -> None:
        self._values: dict[type, Any] = {}

    def give(self, value: Any) -> None:
        """Sets the round's value of this type."""
        self._values[type(value)] = value

    def get(self, kind: type[V]) -> V | None:
        """Returns the round's value of a type, if one was given."""
        return self._values.get(kind)


def _add(first: Any, second: Any) -> Any:
    if isinstance(first, Mapping):
        shared = {key: _add(first[key], second[key]) for key in first.keys() & second.keys()}
        return {**first, **second, **shared}
    if isinstance(first, Sequence):
        return type(first)(_add(a, b) for a, b in zip(first, second, strict=True))  # type: ignore[call-arg]
    return first + second


def _numbers(value: Any) -> Iterator[float]:
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(items, Iterable):
        for item in items:
            yield from _numbers(item)
    else:
        yield items


def _is_of(value: Any, hint: Any) -> bool:
    """Returns whether a plain value is of a field's type; types that are not those of reports are not read."""
    parts = get_args(hint)
    if get_origin(hint) is Mapping:
        return isinstance(value, Mapping) and all(_is_of(item, parts[1]) for item in value.values())
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(_is_of(item, parts[0]) for item in value)
    if hint not in (int, float):
        return True
    number = isinstance(value, int | hint) and not isinstance(value, bool)
    return number and (hint is float or value >= 0)


def _scale(value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {key: _scale(item, factor) for key, item in value.items()}
    return [_scale(item, factor) for item in value] if isinstance(value, Sequence) else value * factor


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) else value
