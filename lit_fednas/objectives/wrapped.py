"""Objectives around another one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, MacsReport, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import TaskLoss
from lit_fednas.supernets import OutputsNetwork, Supernet


class WrappedObjective(Objective):
    """Delegates everything but the loss, which a subclass writes, to the objective inside.

    Args:
        objective: The objective inside.

    Attributes:
        added_reports: The types of the reports that the subclass adds.
    """

    added_reports: ClassVar[tuple[type[Report], ...]] = ()

    def __init__(self, objective: Objective = TaskLoss()) -> None:
        self.objective = objective

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.compilable

    @property
    def testable(self) -> bool:  # type: ignore[override]
        """Whether that of the objective inside is."""
        return self.objective.testable

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

    @override
    def check_result(self, result: ClientResult) -> None:
        self.objective.check_result(result)

    def check_macs(self, result: ClientResult, least: int, most: int) -> None:
        """Validates a client's :class:`~lit_fednas.messages.MacsReport`.

        Args:
            result: The client's.
            least: Multiply-accumulates of all examples that it saw, at least.
            most: And at most.

        Raises:
            ValueError: They are not in these limits.
        """
        report = result.report(MacsReport)
        if report is None or not least <= report.macs <= most:
            raise ValueError(f"{report} of {result.num_seen} examples, which are {least} to {most}")


class KnownLogits(nn.Module):
    """A network whose output is known: several losses are computed from one forward pass.

    Args:
        logits: ``[batch, num_classes]``; returned whatever the input is.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self._logits = logits

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self._logits


class AllOutputs(WrappedObjective):
    """Combines the losses of all outputs of a network, on the same batch in one pass.

    Args:
        objective: The loss of one output, which gets its logits alone. An objective that needs a network's
            weights, as a proximal term does, goes around this objective.
    """

    compilable = False  # it runs parts of the network

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
                f"model.objective.objective: {inner} needs a network, and {outer} has only logits for it; put "
                f"{outer} inside {inner}"
            )
        super().setup(supernet, clients)

    def losses(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Returns the loss of each output; arguments as of :meth:`loss`."""
        assert isinstance(network, OutputsNetwork)
        return [self.objective.loss(KnownLogits(logits), inputs, targets) for logits in network.outputs(inputs)]


class HeadOnly(WrappedObjective):
    """Trains one module; the others get no gradients, and their norms run as in evaluation.

    The first step of FedorAS' transfer to other labels (App. H).

    Args:
        objective: The loss.
        head: The module's name in the network's ``named_modules``.

    Example:
        >>> import torch
        >>> from collections import OrderedDict
        >>> net = nn.Sequential(OrderedDict(body=nn.Linear(2, 2), heads=nn.Linear(2, 2)))
        >>> HeadOnly().loss(net, torch.zeros(1, 2), torch.tensor([0])).backward()
        >>> net.body.weight.grad is None, net.heads.weight.grad is None
        (True, False)
    """

    def __init__(self, objective: Objective = TaskLoss(), head: str = "heads") -> None:
        super().__init__(objective)
        self.head = head

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Freezes the rest (the whole network is in training mode when a fit begins), then computes the loss."""
        for name, module in network.named_modules():
            if not self._trains(name):
                module.training = False
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(self._trains(name))
        return self.objective.loss(network, inputs, targets)

    def _trains(self, name: str) -> bool:
        return name == self.head or name.startswith(f"{self.head}.")
