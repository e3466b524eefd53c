"""Objectives of networks within a network: FedHeN's exits, SplitMix's bases, FjORD's and FLuID's widths.

FjORD: Horvath et al. (2021, "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout", NeurIPS).
"""

from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.costs.counting import on_meta
from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, Report, UnitChangesReport
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.objectives.wrapped import CountedObjective, WrappedObjective
from lit_fednas.supernets import OutputsNetwork, Supernet, Width, WidthSupernet


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


class SideObjective(AllOutputs, CountedObjective):
    """The loss of the client's network plus those of all exits that it holds (FedHeN, Eq. 2; Alg. 2, lines 8 to 15).

    Its gradient is the sum of theirs (Alg. 2, line 13). A client whose architecture has one exit trains that alone
    (``ClientTraining``). It reports the multiply-accumulates of all forward passes, which contain those of the heads.

    Args:
        objective: The loss of one exit, which gets its logits alone (:class:`Proximal` goes around this one).

    Raises:
        ConfigError: The supernet has no exits, or the objective inside wraps another one.
    """

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
        self._macs_per_example = self._macs_through_heads(task.arch)
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        *early, last = self.losses(network, inputs, targets)
        loss = sum(early, last)
        self._macs += self._macs_per_example * len(targets)
        return loss

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        macs = result.num_seen * self._macs_through_heads(result.task.arch)
        self.check_macs(result, macs, macs)

    def _macs_through_heads(self, arch: Any) -> int:
        """Returns the multiply-accumulates of an example through all heads."""
        if arch not in self._macs_of:
            network = on_meta(self._supernet.build, arch)
            network.forward = network.outputs
            self._macs_of[arch] = count_macs(network, self._supernet.input_shape, self._supernet.input_dtype)
        return self._macs_of[arch]


class IndependentBases(AllOutputs):
    """The sum over a network's outputs of the loss of each: independent training of networks side by side (SplitMix).

    The local training of Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and
    In-Situ Customization", ICLR) in one pass. With an optimizer that steps element by element this equals training
    each alone on the same batches, but for ``client.clip_norm`` and draws of dropout.

    Args:
        objective: The loss of one output, which gets its logits alone.

    Raises:
        ConfigError: Before training: the supernet's subnets have one output, or the objective inside wraps another.
    """

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Whether the objective inside is."""
        return self.objective.stackable

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        first, *others = self.losses(network, inputs, targets)
        return sum(others, first)


class OrderedDropout(CountedObjective):
    """Trains a net of a new width for every batch: the first units of every layer of the client's own.

    The width is drawn uniformly from the supernet's widths that are not above the client's. So the units come to
    be ordered by importance, and every narrower net can be cut out. With ``distill`` and a width below the
    client's the loss of a batch is, with the weight of teaching and the temperature that the paper found best,

        CE(teacher) + KL(softmax(teacher) || softmax(student)),

    where the student is the drawn width, the teacher the client's own, and the last term moves the student alone. If
    the client's own width is drawn, it is CE, once. It reports the multiply-accumulates of all forward passes.

    The objective inside gets logits alone (``Proximal`` goes around this one). The distance between student and
    teacher is over all logits, also those that a ``MaskedCrossEntropy`` inside masks.

    Args:
        objective: CE, the loss of each width.
        distill: Whether the client's own width teaches.

    Raises:
        ConfigError: Before training: the supernet has no widths, or ``distill`` is true and examples have no classes;
            in a round: a client keeps single units, so that it contains no widths.
    """

    compilable = False  # it runs parts of the network
    supernet_kind: ClassVar[type] = WidthSupernet

    def __init__(self, objective: Objective = TaskLoss(), distill: bool = False) -> None:
        super().__init__(objective)
        self.distill = distill

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        if self.distill and not clients.task.labelled:
            raise ConfigError(
                f"model.objective.distill: true compares the classes of examples, and the data's task is "
                f"{type(clients.task).__name__}; set it to false"
            )
        self._macs_of = {width: supernet.macs(Width(width)) for width in self._supernet.space.widths}

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        own = getattr(task.arch, "ratio", None)
        if own is None:
            raise ConfigError(
                f"model.objective: OrderedDropout draws widths up to the client's, and client {task.client} has "
                f"{task.arch}; use an assignment of widths, or another objective"
            )
        self._widths = [width for width in self._supernet.space.widths if width <= own]
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        drawn, own = self._widths[int(self._rng.integers(len(self._widths)))], self._widths[-1]
        self._macs += self._macs_of[drawn] * len(targets)
        if drawn == own:
            return self.objective.loss(network, inputs, targets)
        student = self._supernet.run_inside(network, Width(drawn), inputs)
        if not self.distill:
            return self.objective.loss(nn.Identity(), student, targets)
        self._macs += self._macs_of[own] * len(targets)
        teacher = network(inputs)
        right = functional.log_softmax(teacher.detach(), 1)
        distance = functional.kl_div(functional.log_softmax(student, 1), right, log_target=True, reduction="batchmean")
        return self.objective.loss(nn.Identity(), teacher, targets) + distance

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        seen = result.num_seen
        self.check_macs(result, seen * min(self._macs_of.values()), seen * 2 * self._supernet.macs(result.task.arch))


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
        self._before = {}
        changes = {group: (moved[group].sqrt() / was[group].sqrt().clamp_min(1e-12)).tolist() for group in moved}
        return (UnitChangesReport(changes), *super().report())

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        report = result.report(UnitChangesReport)
        units = self._supernet.units if result.task.arch == self._supernet.space.largest else {}
        if report is None or {group: len(changes) for group, changes in report.changes.items()} != units:
            raise ValueError(f"changes of other units than those of {result.task.arch}")
        if any(number < 0 for number in report.numbers):
            raise ValueError("a change of a unit is negative")
