"""FLuID's changes of units, which non-stragglers report (Wang et al., 2023)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientResult, ClientTask, Report, UnitChangesReport
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import WidthSupernet


class UnitChanges(WrappedObjective):
    """Trains by the objective inside, and reports the relative change of each unit, for ``InvariantUnits`` (FLuID).

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
        self._before: dict[str, Tensor] = {}  # the parameters whose first dimension is cut, if the network is whole
        if task.arch == self._supernet.space.largest:
            for name, parameter in network.named_parameters():
                if any(group for group, _ in self._supernet.axes[name][:1]):
                    self._before[name] = parameter.detach().clone()
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(network, inputs, targets)

    @torch.no_grad()
    @override
    def report(self) -> tuple[Report, ...]:
        moved: dict[str, Tensor] = {}
        was: dict[str, Tensor] = {}
        for name, before in self._before.items():
            group, weights = self._supernet.axes[name][0][0], self._network.get_parameter(name)
            units = self._supernet.units[group]  # a unit's entries are adjacent: a row of this shape
            moved[group] = moved.get(group, 0) + (weights - before).reshape(units, -1).square().sum(1)
            was[group] = was.get(group, 0) + before.reshape(units, -1).square().sum(1)
        changes = {group: (moved[group].sqrt() / was[group].sqrt().clamp_min(1e-12)).tolist() for group in moved}
        return (UnitChangesReport(changes), *super().report())

    @override
    def end(self, network: nn.Module) -> None:
        self._before = {}
        super().end(network)

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        report = result.report(UnitChangesReport)
        units = self._supernet.units if result.task.arch == self._supernet.space.largest else {}
        if report is None or {group: len(changes) for group, changes in report.changes.items()} != units:
            raise ValueError(f"changes of other units than those of {result.task.arch}")
        if any(number < 0 for number in report.numbers):
            raise ValueError("a change of a unit is negative")
