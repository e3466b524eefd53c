"""An objective around another one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.supernets import Supernet


class WrappedObjective(Objective):
    """Delegates everything but the loss, which a subclass writes, to the objective inside.

    Args:
        objective: The objective inside.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    #: The types of the reports that the subclass adds.
    added_reports: ClassVar[tuple[type[Report], ...]] = ()

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.compilable

    @property
    def report_types(self) -> tuple[type[Report], ...]:  # type: ignore[override]
        """Those of the objective inside, and the subclass's own."""
        return (*self.objective.report_types, *self.added_reports)

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        self.objective.setup(supernet, clients)

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self.objective.begin(network, task, generator)

    @override
    def report(self) -> tuple[Report, ...]:
        return self.objective.report()


class KnownLogits(nn.Module):
    """A network whose output is known: several losses are taken of one forward pass.

    Args:
        logits: ``[batch, num_classes]``; returned whatever the input is.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self._logits = logits

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self._logits


def check_sees_logits_alone(outer: Objective, inner: Objective) -> None:
    """Validates that an objective inside does not look at a network's weights, as a proximal term does.

    Args:
        outer: Passes logits to the objective inside, by :class:`KnownLogits`.
        inner: The objective inside.

    Raises:
        ConfigError: The objective inside wraps another itself.
    """
    if isinstance(inner, WrappedObjective):
        name, around = type(inner).__name__, type(outer).__name__
        raise ConfigError(
            f"model.objective.objective: {name} needs a network, and {around} has only logits for it; put "
            f"{around} inside {name}"
        )
