"""How much each unit of a network changes in a client's training.

What invariant dropout goes by (Wang, Nair and Mahajan, 2023, "FLuID: Mitigating Stragglers in
Federated Learning using Invariant Dropout", NeurIPS): units whose weights hardly change any more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.width.supernet import WidthSupernet

#: What the norm of a unit's weights is at least taken for, so that the change of one without weights is finite.
_LEAST_NORM = 1e-12


class UnitChanges(WrappedObjective):
    """Trains as the objective inside says, and reports how far each unit went.

    A unit's weights are its entries in all parameters whose first dimension is cut by its group: what comes into
    it, and its norm's scale and shift. Its change is relative: the Euclidean norm of the difference that training
    made, divided by the norm before. The report has ``unit_changes``: per group a list of numbers, one per unit;
    only of clients that train the whole network.

    Args:
        objective: The loss.

    Raises:
        ConfigError: The supernet is not cut by width (told before training).
    """

    def __init__(self, objective: Objective = CrossEntropy()) -> None:
        super().__init__(objective)

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Keeps what knows the units."""
        if not isinstance(supernet, WidthSupernet):
            raise ConfigError(
                f"model.objective: UnitChanges looks at units, and {type(supernet).__name__} is not cut by them; "
                f"use a WidthSupernet, or another objective"
            )
        self._supernet = supernet
        super().setup(supernet, clients)

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Keeps the weights as they were received, if the network is whole."""
        self._network = network
        self._before: dict[str, Tensor] = {}
        if task.arch == self._supernet.space.largest:
            self._before = {name: weights.clone() for name, weights in self._weights().items()}
        super().begin(network, task, generator)

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """That of the objective inside."""
        return self.objective.loss(network, inputs, targets)

    @torch.no_grad()
    def report(self) -> dict[str, Any]:
        """The units' changes."""
        found = super().report()
        if not self._before:
            return found
        moved: dict[str, Tensor] = {}
        was: dict[str, Tensor] = {}
        for name, weights in self._weights().items():
            group = self._supernet.axes[name][0][0]
            assert group is not None
            before = self._before[name]
            units = self._supernet.units[group]  # a unit's entries are adjacent: a row of this shape
            moved[group] = moved.get(group, 0) + (weights - before).reshape(units, -1).square().sum(1)
            was[group] = was.get(group, 0) + before.reshape(units, -1).square().sum(1)
        self._before = {}
        changes = {
            group: (moved[group].sqrt() / was[group].sqrt().clamp_min(_LEAST_NORM)).tolist() for group in moved
        }
        return {**found, "unit_changes": changes}

    def _weights(self) -> dict[str, Tensor]:
        """The parameters whose first dimension is cut."""
        return {
            name: parameter.detach()
            for name, parameter in self._network.named_parameters()
            if self._supernet.axes[name] and self._supernet.axes[name][0][0] is not None
        }
