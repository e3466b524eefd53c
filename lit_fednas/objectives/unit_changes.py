"""FLuID's changes of units, which non-stragglers send (Wang et al., 2023)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.messages import ClientResult, ClientTask, Statistics, UnitChangeStatistics
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import WidthSupernet


class UnitChanges(WrappedObjective):
    """Trains with the inner objective and returns the relative change of each unit, for ``InvariantUnits`` (FLuID).

    A unit's weights are its rows of all parameters that its group cuts in the first dimension: its incoming weights,
    and the scale and shift of its norm. Its change is the Euclidean norm of their difference in training, divided by
    their norm before. The statistics are empty unless the client trains the whole network.

    Args:
        objective: The loss.

    Raises:
        ConfigError: The supernet is not cut by width (before training).
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    added_statistics: ClassVar[tuple[type[Statistics], ...]] = (UnitChangeStatistics,)

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._network = network
        self._received: dict[str, Tensor] = {}  # parameters with a cut first dimension, if the network is whole
        if task.arch == self._supernet.space.largest:
            for name, parameter in network.named_parameters():
                if any(group for group, _ in self._supernet.axes[name][:1]):
                    self._received[name] = parameter.detach().clone()
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.loss(network, inputs, targets)

    @torch.no_grad()
    @override
    def statistics(self) -> tuple[Statistics, ...]:
        difference: dict[str, Tensor] = {}  # per group, the sums of squares of each unit
        norm: dict[str, Tensor] = {}
        for name, received in self._received.items():
            group, weights = self._supernet.axes[name][0][0], self._network.get_parameter(name)
            units = self._supernet.units[group]  # a unit's entries are adjacent: a row of this shape
            difference[group] = difference.get(group, 0) + (weights - received).reshape(units, -1).square().sum(1)
            norm[group] = norm.get(group, 0) + received.reshape(units, -1).square().sum(1)
        changes = {group: (difference[group].sqrt() / norm[group].sqrt().clamp_min(1e-12)).tolist() for group in norm}
        return (UnitChangeStatistics(changes), *super().statistics())

    @override
    def end(self, network: nn.Module) -> None:
        self._received = {}
        super().end(network)

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        statistics = result.find(UnitChangeStatistics)
        units = self._supernet.units if result.task.arch == self._supernet.space.largest else {}
        if statistics is None or {group: len(changes) for group, changes in statistics.changes.items()} != units:
            raise ValueError(f"the units of its changes are not those of {result.task.arch}")
        if any(number < 0 for number in statistics.numbers):
            raise ValueError("a change of a unit is negative")
