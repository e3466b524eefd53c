"""How much each unit of a network changes in a client's training.

What invariant dropout goes by (Wang, Nair and Mahajan, 2023, "FLuID: Mitigating Stragglers in
Federated Learning using Invariant Dropout", NeurIPS): units whose weights hardly change any more.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientTask, Report, UnitChangesReport
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets.width.supernet import WidthSupernet

#: What the norm of a unit's weights is at least taken for, so that the change of one without weights is finite.
_LEAST_NORM = 1e-12


class UnitChanges(WrappedObjective):
    """Trains as the objective inside says, and reports how far each unit went.

    A unit's weights are its entries in all parameters whose first dimension is cut by its group: what comes into
    it, and its norm's scale and shift. Its change is relative: the Euclidean norm of the difference that training
    made, divided by the norm before. The report has a number per unit of each group; it is empty
    unless the client trains the whole network.

    Args:
        objective: The loss.

    Raises:
        ConfigError: The supernet is not cut by width (reported before training).
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    added_reports: ClassVar[tuple[type[Report], ...]] = (UnitChangesReport,)

    def __init__(self, objective: Objective = CrossEntropy()) -> None:
        super().__init__(objective)

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._network = network
        self._before: dict[str, Tensor] = {}
        if task.arch == self._supernet.space.largest:
            self._before = {name: weights.clone() for name, weights in self._weights().items()}
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(network, inputs, targets)

    @torch.no_grad()
    @override
    def report(self) -> tuple[Report, ...]:
        return (UnitChangesReport(self._changes()), *super().report())

    def _changes(self) -> dict[str, list[float]]:
        """Returns the relative change of each unit by group; nothing if the network is not whole."""
        if not self._before:
            return {}
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
        return {
            group: (moved[group].sqrt() / was[group].sqrt().clamp_min(_LEAST_NORM)).tolist() for group in moved
        }

    def _weights(self) -> dict[str, Tensor]:
        """Returns the parameters whose first dimension is cut."""
        return {
            name: parameter.detach()
            for name, parameter in self._network.named_parameters()
            if self._supernet.axes[name] and self._supernet.axes[name][0][0] is not None
        }
