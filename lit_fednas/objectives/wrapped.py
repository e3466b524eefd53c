"""Base classes of objectives that contain an inner objective."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, MacsStatistics, Statistics
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.supernets import OutputsNetwork, Supernet


class WrappedObjective(Objective):
    """Delegates every method except the loss, which a subclass defines, to the inner objective."""

    #: The types of statistics that the subclass adds.
    added_statistics: ClassVar[tuple[type[Statistics], ...]] = ()

    def __init__(self, objective: Objective = TaskLoss()) -> None:
        self.objective = objective

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """The value of the inner objective."""
        return self.objective.compilable

    @property
    def testable(self) -> bool:  # type: ignore[override]
        """The value of the inner objective."""
        return self.objective.testable

    @property
    def statistics_types(self) -> tuple[type[Statistics], ...]:  # type: ignore[override]
        """The types of the inner objective and of the subclass."""
        return (*self.objective.statistics_types, *self.added_statistics)

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        self.objective.setup(supernet, clients)

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self.objective.begin(network, task, generator)

    @override
    def statistics(self) -> tuple[Statistics, ...]:
        return self.objective.statistics()

    @override
    def end(self, network: nn.Module) -> None:
        self.objective.end(network)

    @override
    def check_result(self, result: ClientResult) -> None:
        self.objective.check_result(result)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.objective.state_dict()

    @override
    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.objective.load_state_dict(state)

    def check_macs(self, result: ClientResult, lowest: int, highest: int) -> None:
        """Raises ``ValueError`` unless the multiply-accumulates that a client sends lie within the bounds."""
        statistics = result.find(MacsStatistics)
        if statistics is None or not lowest <= statistics.macs <= highest:
            raise ValueError(f"{statistics} is impossible; {result.num_seen} examples need {lowest} to {highest} MACs")


class CountedObjective(WrappedObjective):
    """Returns the multiply-accumulates of a fit's forward passes, which the loss adds to ``_macs``."""

    added_statistics: ClassVar[tuple[type[Statistics], ...]] = (MacsStatistics,)

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._macs = 0
        super().begin(network, task, generator)

    @override
    def statistics(self) -> tuple[Statistics, ...]:
        return (MacsStatistics(self._macs), *super().statistics())


class AllOutputs(WrappedObjective):
    """Combines the losses of all outputs of a network; the inner objective gets the logits of one output at a time."""

    compilable = False  # the loss runs parts of the network

    @override
    def check_supernet(self, supernet: Supernet) -> None:
        if not isinstance(supernet.skeleton(supernet.space.largest), OutputsNetwork):
            raise ConfigError(
                f"model.objective: {type(self).__name__} trains several outputs, and {type(supernet).__name__} "
                f"has one; use a supernet such as EarlyExitResNet or BaseNetworks, or another objective"
            )

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        if isinstance(self.objective, WrappedObjective):
            inner, outer = type(self.objective).__name__, type(self).__name__
            raise ConfigError(
                f"model.objective.objective: {inner} needs a network, and {outer} gives it only logits; put "
                f"{outer} inside {inner}"
            )
        super().setup(supernet, clients)

    def losses(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Returns the loss of each output; the arguments are those of :meth:`loss`."""
        outputs = cast(OutputsNetwork, network).outputs(inputs)
        return [self.objective.loss(nn.Identity(), logits, targets) for logits in outputs]
