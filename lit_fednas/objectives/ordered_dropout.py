"""FjORD's ordered dropout.

Horvath et al. (2021, "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout",
NeurIPS).
"""

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
