"""An objective around another one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lit_fednas.data import ClientData
from lit_fednas.messages import ClientTask
from lit_fednas.objectives.base import Objective
from lit_fednas.supernets import Supernet


class WrappedObjective(Objective):
    """Hands everything on to the objective inside, but the loss, which a subclass writes.

    Args:
        objective: The one inside.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.compilable

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Hands it on."""
        self.objective.setup(supernet, clients)

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Hands it on."""
        self.objective.begin(network, task, generator)

    def report(self) -> dict[str, Any]:
        """Hands it on."""
        return self.objective.report()
