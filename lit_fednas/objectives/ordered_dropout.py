"""Ordered dropout with self-distillation: FjORD's local training (Horvath et al., 2021)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, MacsReport, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import TaskLoss
from lit_fednas.objectives.wrapped import KnownLogits, WrappedObjective
from lit_fednas.ranges import PositiveFloat, UnitInterval, checked
from lit_fednas.supernets import Supernet, Width, WidthSupernet


@checked("objective")
class OrderedDropout(WrappedObjective):
    """Trains a net of a new width for every batch: the first units of every layer of the client's own.

    The width is drawn uniformly from the supernet's widths that are not above the client's. So the units come to
    be ordered by importance, and every narrower net can be cut out. With ``distill`` and a width below the
    client's the loss of a batch is

        CE(teacher) + (1 - alpha) CE(student) + alpha T^2 KL(softmax(teacher / T) || softmax(student / T)),

    where the student is the drawn width, the teacher the client's own, and the last term moves the student alone
    (the factor T^2 is Hinton et al.'s, 2015). If the client's own width is drawn, it is CE, once. The logged loss
    of a client is this sum. The objective reports the multiply-accumulates of all forward passes.

    An objective inside is given the logits of narrower nets, not their modules: an objective that reads a
    network's parameters goes around this one (``Proximal(OrderedDropout())``). The distance between student and
    teacher is over all logits, also those that a ``MaskedCrossEntropy`` inside masks.

    Args:
        objective: CE, the loss of each width.
        distill: Whether the client's own width teaches.
        alpha: The weight of teaching, from 0 to 1 (the paper's best: 1).
        temperature: T, by which logits are divided when they are compared (the paper's best: 1).

    Raises:
        ConfigError: ``alpha`` or ``temperature`` is out of range; reported before training: the supernet has no
            widths, or ``distill`` is asked for and examples have no classes; in a round: a client keeps single units,
            so that it contains no widths.
    """

    compilable = False  # it runs parts of the network
    supernet_kind: ClassVar[type] = WidthSupernet
    added_reports: ClassVar[tuple[type[Report], ...]] = (MacsReport,)

    def __init__(
        self,
        objective: Objective = TaskLoss(),
        distill: bool = False,
        alpha: UnitInterval = 1.0,
        temperature: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(objective)
        self.distill = distill
        self.alpha = alpha
        self.temperature = temperature

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
        self._macs = 0
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        drawn, own = self._widths[int(self._rng.integers(len(self._widths)))], self._widths[-1]
        self._macs += self._macs_of[drawn] * len(targets)
        if drawn == own:
            return self.objective.loss(network, inputs, targets)
        student = self._supernet.run_inside(network, drawn, inputs)
        loss = self.objective.loss(KnownLogits(student), inputs, targets)
        if not self.distill:
            return loss
        self._macs += self._macs_of[own] * len(targets)
        teacher = network(inputs)
        distance = self._distance(student, teacher.detach())
        own_loss = self.objective.loss(KnownLogits(teacher), inputs, targets)
        return own_loss + (1 - self.alpha) * loss + self.alpha * distance

    @override
    def report(self) -> tuple[Report, ...]:
        return (MacsReport(self._macs), *super().report())

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        seen = result.num_seen
        self.check_macs(result, seen * min(self._macs_of.values()), seen * 2 * self._supernet.macs(result.task.arch))

    def _distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Returns the batch's mean divergence of the student from the teacher, times T^2."""
        student, teacher = (functional.log_softmax(logits / self.temperature, 1) for logits in (student, teacher))
        return functional.kl_div(student, teacher, log_target=True, reduction="batchmean") * self.temperature**2
