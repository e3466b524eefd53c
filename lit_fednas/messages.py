"""What passes between the server and its clients, and how many bytes it has.

A round sends a :class:`ClientTask` down and gets a :class:`ClientUpdate` back. Both are frozen; a method that
needs more writes a subclass. Bytes are counted here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

#: The status of a result whose update the server did not ask for.
WITHHELD = "withheld"


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors as they are sent: elements times element size.

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
        limits: What one example's forward pass may cost at most on the client, by cost.
        unsupported: Operators that the client cannot run.
        group: The group of clients that it trains in, where clients are grouped.
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
class ClientUpdate:
    """What a client sends back.

    Attributes:
        task: The task it answers.
        weights: The subnet's tensors after training, by their names in the subnet. They are the client
            network's own tensors, not copies, and hold until the next client is trained: aggregate at once.
        num_steps: Optimizer steps taken.
        num_seen: Examples that went through the network, repetitions counted.
        loss: Mean local training loss over those examples.
        report: What the objective adds (for instance examples per operator).
        accuracy: On the client's own validation split; NaN where it was not tested.
        num_tested: Examples that it was tested on.
    """

    task: ClientTask
    weights: Mapping[str, Tensor]
    num_steps: int
    num_seen: int
    loss: float
    report: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float = float("nan")
    num_tested: int = 0


@dataclass(frozen=True)
class ClientResult:
    """How a client's part in a round went: the update without its weights, for logs, ledger and assignment.

    Attributes:
        task: The task.
        status: ``"ok"``, or why there is no update: ``"error"``, ``"non-finite"``, ``"timeout"``,
            ``"dropped"`` (it went away), ``"empty"`` (no batch to train on), ``"withheld"`` (all went well, but
            the server did not ask for the update).
        reason: One line for the log; empty when all went well.
        num_steps: Optimizer steps taken.
        num_seen: Examples that went through the network, repetitions counted.
        loss: Mean local training loss; NaN without an update.
        seconds: Wall time of the fit.
        report: What the objective reported.
        accuracy: On the client's own validation split; NaN where it was not tested.
        num_tested: Examples that it was tested on.
    """

    task: ClientTask
    status: str = "ok"
    reason: str = ""
    num_steps: int = 0
    num_seen: int = 0
    loss: float = float("nan")
    seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float = float("nan")
    num_tested: int = 0

    @property
    def ok(self) -> bool:
        """Whether the update was used."""
        return self.status == "ok"

    @property
    def answered(self) -> bool:
        """Whether the client has done what it was asked, also if its update was not asked for."""
        return self.status in ("ok", WITHHELD)
