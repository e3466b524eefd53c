"""FjORD's ordered dropout (Horvath et al., 2021, NeurIPS)."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.objectives.base import Objective, TaskLoss
from lit_fednas.objectives.wrapped import CountedObjective
from lit_fednas.supernets import Supernet, Width, WidthSupernet


class OrderedDropout(CountedObjective):
    """Trains a new width for every batch: the first units of every layer of the client's network.

    The width is drawn uniformly from the supernet's widths up to the client's. This orders the units by importance,
    so that every narrower network can be cut out. With ``distill`` and a width below the client's, the loss is

        CE(teacher) + KL(softmax(teacher) || softmax(student)).

    The student is the drawn width and the teacher the client's. The last term trains only the student, with the
    weight and temperature that the paper found best. Otherwise the loss is CE of the drawn width. The client sends
    the multiply-accumulates of all forward passes.

    The inner objective gets only logits, so put this one inside ``Proximal``. The distance between student and
    teacher covers all logits, also those that an inner ``MaskedCrossEntropy`` masks.

    Args:
        objective: The loss of each width (CE).
        distill: Whether the client's width teaches the drawn one.

    Raises:
        ConfigError: Before training: the supernet has no widths, or ``distill`` is true and examples have no classes.
            In a round: a client's architecture selects single units, so it contains no widths.
    """

    compilable = False  # the loss runs parts of the network
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
        client_width = getattr(task.arch, "ratio", None)
        if client_width is None:
            raise ConfigError(
                f"model.objective: OrderedDropout draws widths up to the client's, and client {task.client} has "
                f"{task.arch}; use an assignment of widths, or another objective"
            )
        self._widths = [width for width in self._supernet.space.widths if width <= client_width]
        self._rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        super().begin(network, task, generator)

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        width, client_width = self._widths[int(self._rng.integers(len(self._widths)))], self._widths[-1]
        self._macs += self._macs_of[width] * len(targets)
        if width == client_width:
            return self.objective.loss(network, inputs, targets)
        student = self._supernet.run_inside(network, Width(width), inputs)
        if not self.distill:
            return self.objective.loss(nn.Identity(), student, targets)
        self._macs += self._macs_of[client_width] * len(targets)
        teacher = network(inputs)
        teacher_log, student_log = functional.log_softmax(teacher.detach(), 1), functional.log_softmax(student, 1)
        distance = functional.kl_div(student_log, teacher_log, log_target=True, reduction="batchmean")
        return self.objective.loss(nn.Identity(), teacher, targets) + distance

    @override
    def check_result(self, result: ClientResult) -> None:
        super().check_result(result)
        seen = result.num_seen
        self.check_macs(result, seen * min(self._macs_of.values()), seen * 2 * self._supernet.macs(result.task.arch))
