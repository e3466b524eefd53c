"""Ordered dropout with self-distillation: FjORD's local training (Horvath et al., 2021).

A client draws a width for every batch, up to its own, and takes one step on the net of that width inside its own:
the first units of every layer. So the units come to be ordered by importance, and every narrower net can be cut
out. With self-distillation the client's own width is trained on every batch as well and teaches the one drawn.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, MacsReport, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.wrapped import KnownLogits, WrappedObjective
from lit_fednas.ranges import PositiveFloat, UnitInterval, checked
from lit_fednas.supernets import Supernet, Width, WidthSupernet


@checked("objective")
class OrderedDropout(WrappedObjective):
    """Trains a net of a new width for every batch, inside the client's own.

    The width is drawn uniformly from the supernet's widths that are not above the client's. With ``distill`` and a
    width below the client's the loss of a batch is

        CE(teacher) + (1 - alpha) CE(student) + alpha T^2 KL(softmax(teacher / T) || softmax(student / T)),

    where the student is the drawn width, the teacher the client's own, and the last term moves the student alone
    (the factor T^2 is Hinton et al.'s, 2015). If the client's own width is drawn, it is CE, once. What a client's
    loss is logged as is this sum.

    An objective inside is given the logits of narrower nets, not their modules: wrap what looks at a network's
    parameters around this one (``Proximal(OrderedDropout())``). The distance between student and teacher is over
    all logits, also those that a ``MaskedCrossEntropy`` inside masks.

    Args:
        objective: CE, the loss of each width.
        distill: Whether the client's own width teaches.
        alpha: What teaching counts, from 0 to 1 (the paper's best: 1).
        temperature: T, what logits are divided by when they are compared (the paper's best: 1).

    It reports the multiply-accumulates of all forward passes.

    Raises:
        ConfigError: ``alpha`` or ``temperature`` is out of range; in :meth:`setup`, the supernet has no widths.
    """

    compilable = False  # it runs parts of the network
    supernet_kind: ClassVar[type] = WidthSupernet
    added_reports: ClassVar[tuple[type[Report], ...]] = (MacsReport,)

    def __init__(
        self,
        objective: Objective = CrossEntropy(),
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
        self._macs_of = {width: supernet.macs(Width(width)) for width in self._supernet.space.widths}

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Finds the widths that fit into the client's.

        Args:
            network: The client's network.
            task: The client's task.
            generator: Draws the widths.

        Raises:
            ConfigError: The client keeps single units, so that it contains no widths.
        """
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
        taught = self._distance(student, teacher.detach())
        return (
            self.objective.loss(KnownLogits(teacher), inputs, targets)
            + (1 - self.alpha) * loss
            + self.alpha * taught
        )

    @override
    def report(self) -> tuple[Report, ...]:
        return (MacsReport(self._macs), *super().report())

    def _distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Returns the batch's mean divergence of the student from the teacher, times T^2."""
        student, teacher = (functional.log_softmax(logits / self.temperature, 1) for logits in (student, teacher))
        return functional.kl_div(student, teacher, log_target=True, reduction="batchmean") * self.temperature**2
