"""A client's fit: the record that is filled while it runs, and what trains the fits of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from torch import Tensor

from lit_fednas.messages import ClientResult, ClientState, ClientTask, ClientUpdate, Report

#: How a fit went, and the update if it can be used.
Outcome = tuple[ClientResult, ClientUpdate | None]


class TaskRunner(ABC):
    """Trains the tasks of a round: sub-Trainers in this process, or devices elsewhere.

    ``trainer.fit_loop.runner`` makes it when a run starts; faults, aggregation, callbacks and records do not know which
    one it is.

    Attributes:
        state_of: Returns what is kept of a client for its next fit; nothing unless the engine sets it.
    """

    state_of: Callable[[int], Mapping[str, Any]] = staticmethod(lambda client: {})

    @abstractmethod
    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Outcome]:
        """Trains the clients."""


@dataclass
class Fit:
    """One client's fit: made once and filled; the others see its frozen view, :attr:`outcome`."""

    task: ClientTask
    status: str = "ok"
    reason: str = ""
    num_steps: int = 0
    num_seen: int = 0
    loss: float = nan
    seconds: float = 0.0
    reports: tuple[Report, ...] = ()
    tested: Mapping[str, float] = field(default_factory=dict)
    num_tested: int = 0
    weights: Mapping[str, Tensor] | None = None  # none if there is no update
    state: Mapping[str, ClientState] | None = None

    def fail(self, status: str, reason: str) -> None:
        """Notes why there is no update."""
        self.status, self.reason, self.weights = status, reason, None

    def fill(self, weights: Mapping[str, Tensor], num_steps: int, num_seen: int, *sums: float) -> None:
        """Notes the trained weights; ``sums`` are those of the losses, of their units, and of the weights' norms."""
        loss_sum, units, size = sums
        self.weights, self.num_steps, self.num_seen = weights, num_steps, num_seen
        self.loss = loss_sum / max(units, 1)
        if self.num_steps == 0:
            self.fail("empty", f"no batch to train on among {self.task.num_examples} examples")
        elif not isfinite(size) or not isfinite(self.loss):
            what = "loss is" if isfinite(size) else "trained weights are"
            self.fail("non-finite", f"the {what} not finite; lower client.optimizer's lr or set client.clip_norm")

    @property
    def outcome(self) -> Outcome:
        """The result, and the update if it can be used."""
        if self.weights is None:
            return ClientResult(self.task, self.status, self.reason, seconds=self.seconds), None
        result = ClientResult(
            self.task,
            self.status,
            self.reason,
            self.num_steps,
            self.num_seen,
            self.loss,
            self.seconds,
            self.reports,
            self.tested,
            self.num_tested,
        )
        return result, ClientUpdate(result, self.weights, self.state)
