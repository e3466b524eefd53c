"""FedHeN's side objective: the exits before the last one are trained along (Eq. 2 and Alg. 2, lines 8 to 15)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, MacsReport, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import TaskLoss
from lit_fednas.objectives.wrapped import AllOutputs
from lit_fednas.ranges import NonNegativeFloat, checked
from lit_fednas.supernets import OutputsNetwork, Supernet


@checked("objective")
class SideObjective(AllOutputs):
    """The loss of the client's network plus those of all exits that it holds.

    Its gradient is the sum of theirs (Alg. 2, line 13). A client whose architecture has one exit trains that alone
    (``ClientTraining``). It reports the multiply-accumulates of all forward passes, which contain those of the heads.

    Args:
        objective: The loss of one exit, as in :class:`~lit_fednas.objectives.wrapped.AllOutputs`.
        weight: What the loss of an exit before the last one counts (the paper: 1).

    Raises:
        ConfigError: The weight is negative, the supernet has no exits, or the objective inside wraps another one.
    """

    added_reports: ClassVar[tuple[type[Report], ...]] = (MacsReport,)

    def __init__(self, objective: Objective = TaskLoss(), weight: NonNegativeFloat = 1.0) -> None:
        super().__init__(objective)
        self.weight = weight

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        super().check_supernet(supernet)
        network = cast(OutputsNetwork, supernet.skeleton(supernet.space.largest))
        two = torch.empty(
            2, *supernet.input_shape, dtype=supernet.input_dtype, device="meta"
        )  # batch norm refuses a batch of one
        if len(network.outputs(two)) == 1:
            raise ConfigError(
                "model.objective: SideObjective trains several exits, and the largest architecture holds one; set "
                "supernet.early_heads to true, give more exits, or use TaskLoss"
            )

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        self._macs_of: dict[Any, int] = {}

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._macs_per_example = self._macs(task.arch)
        self._seen = 0
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        *early, loss = self.losses(network, inputs, targets)
        for one in early:
            loss = loss + self.weight * one
        self._seen += len(targets)
        return loss

    @override
    def report(self) -> tuple[Report, ...]:
        return (MacsReport(self._macs_per_example * self._seen), *super().report())

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        macs = result.num_seen * self._macs(result.task.arch)
        self.check_macs(result, macs, macs)

    def _macs(self, arch: Any) -> int:
        """Returns the multiply-accumulates of an example through all heads."""
        if arch not in self._macs_of:
            whole = _AllHeads(self._supernet.skeleton(arch))
            self._macs_of[arch] = count_macs(whole, self._supernet.input_shape, self._supernet.input_dtype)
        return self._macs_of[arch]


class _AllHeads(nn.Module):
    """A network that runs all its heads."""

    def __init__(self, network: OutputsNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.network.outputs(x)
