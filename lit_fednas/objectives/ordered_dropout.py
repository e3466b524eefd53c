"""Ordered dropout with self-distillation: FjORD's local training (Horvath et al., 2021).

A client draws a width for every batch, up to its own, and takes one step on the net of that width inside its own:
the first units of every layer. So the units come to be ordered by importance, and every narrower net can be cut
out. With self-distillation the client's own width is trained on every batch as well and teaches the one drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.objectives.base import Objective
from lit_fednas.objectives.cross_entropy import CrossEntropy
from lit_fednas.objectives.logits import KnownLogits
from lit_fednas.objectives.wrapped import WrappedObjective
from lit_fednas.supernets import Supernet, Width, WidthSupernet


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

    It reports ``macs``, of all forward passes.

    Raises:
        ConfigError: ``alpha`` or ``temperature`` is out of range; in :meth:`setup`, the supernet has no widths.
    """

    compilable = False  # it runs parts of the network

    def __init__(
        self,
        objective: Objective = CrossEntropy(),
        distill: bool = False,
        alpha: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"objective.alpha: {alpha} must be from 0 (no teaching) to 1 (nothing else)")
        if not temperature > 0:
            raise ConfigError(f"objective.temperature: {temperature} must be above 0")
        super().__init__(objective)
        self.distill = distill
        self.alpha = alpha
        self.temperature = temperature

    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        """Keeps what runs the narrower nets, and their costs."""
        if not isinstance(supernet, WidthSupernet):
            raise ConfigError(
                f"model.objective: OrderedDropout draws widths, {type(supernet).__name__} has none; use a "
                f"WidthSupernet, or another objective"
            )
        self._supernet = supernet
        self._macs_of = {width: supernet.macs(Width(width)) for width in supernet.space.widths}
        super().setup(supernet, clients)

    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        """Finds the widths that fit into the client's.

        Raises:
            ConfigError: The client keeps units one by one, so that there are no widths within.
        """
        if not isinstance(task.arch, Width):
            raise ConfigError(
                f"model.objective: OrderedDropout draws widths up to the client's, and client {task.client} has "
                f"none, but {task.arch}; use an assignment of widths, or another objective"
            )
        self._widths = [width for width in self._supernet.space.widths if width <= task.arch.ratio]
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        self._macs = 0
        super().begin(network, task, generator)

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss at a new width, and the teacher's."""
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

    def report(self) -> dict[str, Any]:
        """Multiply-accumulates."""
        return {**super().report(), "macs": self._macs}

    def _distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The batch's mean divergence of the student from the teacher, times T^2."""
        said, right = (functional.log_softmax(logits / self.temperature, 1) for logits in (student, teacher))
        return functional.kl_div(said, right, log_target=True, reduction="batchmean") * self.temperature**2
