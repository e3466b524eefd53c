"""How much each unit of a network changes in a client's training.

Invariant dropout drops units whose weights hardly change any more (Wang, Nair and Mahajan, 2023, "FLuID:
Mitigating Stragglers in Federated Learning using Invariant Dropout", NeurIPS).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientResult, ClientTask, Report, UnitChangesReport
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import WidthSupernet

_LEAST_NORM = 1e-12  # so that the change of a unit without weights is finite


class UnitChanges(WrappedObjective):
    """Trains by the objective inside, and reports the relative change of each unit.

    A unit's weights are its entries in all parameters whose first dimension is cut by its group: what comes into
    it, and its norm's scale and shift. Its change is the Euclidean norm of the difference that training made,
    divided by the norm before. The report is empty unless the client trains the whole network.

    Args:
        objective: The loss.

    Raises:
        ConfigError: The supernet is not cut by width (reported before training).
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    added_reports: ClassVar[tuple[type[Report], ...]] = (UnitChangesReport,)

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

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        report = result.report(UnitChangesReport)
        units = self._supernet.units if result.task.arch == self._supernet.space.largest else {}
        if report is None or {group: len(changes) for group, changes in report.changes.items()} != units:
            raise ValueError(f"changes of other units than those of {result.task.arch}")
        if any(number < 0 for number in report.numbers):
            raise ValueError("a change of a unit is negative")

    def _changes(self) -> dict[str, list[float]]:
        """Returns the relative change of each unit by group; nothing if the network is not whole."""
        moved: dict[str, Tensor] = {}
        was: dict[str, Tensor] = {}
        for name, weights in self._weights().items() if self._before else ():
            group, before = self._supernet.axes[name][0][0], self._before[name]
            units = self._supernet.units[group]  # a unit's entries are adjacent: a row of this shape
            moved[group] = moved.get(group, 0) + (weights - before).reshape(units, -1).square().sum(1)
            was[group] = was.get(group, 0) + before.reshape(units, -1).square().sum(1)
        self._before = {}
        return {group: (moved[group].sqrt() / was[group].sqrt().clamp_min(_LEAST_NORM)).tolist() for group in moved}

    def _weights(self) -> dict[str, Tensor]:
        """Returns the parameters whose first dimension is cut."""
        return {
            name: parameter.detach()
            for name, parameter in self._network.named_parameters()
            if any(group for group, _ in self._supernet.axes[name][:1])
        }
