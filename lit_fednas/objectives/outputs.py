"""Losses of several outputs of a network in one pass: FedHeN's side objective, and SplitMix's independent networks."""

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
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.ranges import NonNegativeFloat, checked
from lit_fednas.supernets import OutputsNetwork, Supernet


class AllOutputs(WrappedObjective):
    """Combines the losses of all outputs of a network; ``objective`` is that of one, which gets its logits alone."""

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
        outputs = cast(OutputsNetwork, network).outputs(inputs)
        return [self.objective.loss(nn.Identity(), logits, targets) for logits in outputs]


@checked("objective")
class SideObjective(AllOutputs):
    """The loss of the client's network plus those of all exits that it holds (FedHeN, Eq. 2; Alg. 2, lines 8 to 15).

    Its gradient is the sum of theirs (Alg. 2, line 13). A client whose architecture has one exit trains that alone
    (``ClientTraining``). It reports the multiply-accumulates of all forward passes, which contain those of the heads.

    Args:
        objective: The loss of one exit, which gets its logits alone: an objective that needs a network's weights, as
            :class:`Proximal`, goes around this one.
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
        shape = (2, *supernet.input_shape)  # batch norm refuses a batch of one
        two = torch.empty(shape, dtype=supernet.input_dtype, device="meta")
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


class IndependentBases(AllOutputs):
    """The sum over a network's outputs of the loss of each: independent training of networks side by side (SplitMix).

    The local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and
    In-Situ Customization", ICLR), in one pass in place of one after the other. Networks side by side share no weights,
    so with an optimizer that steps element by element this equals training each alone on the same batches. It does not
    where the gradient's norm is clipped (``client.clip_norm``), nor with dropout, whose draws differ.

    Args:
        objective: The loss of one output, which gets its logits alone.

    Raises:
        ConfigError: The supernet's subnets have one output, or the objective inside wraps another one (reported
            before training).

    Example:
        >>> import torch
        >>> from lit_fednas.supernets import OutputsNetwork
        >>> class Two(OutputsNetwork):
        ...     def outputs(self, x):
        ...         return [x, 0 * x]
        >>> float(IndependentBases().loss(Two(), torch.zeros(1, 4), torch.tensor([2])))  # twice log 4
        2.7725887298583984
    """

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.stackable

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        first, *others = self.losses(network, inputs, targets)
        return sum(others, first)
