"""The plain supervised losses, and HeteroFL's masked one (Diao et al., 2021, section 3: the masking trick)."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data import Classification, ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClassesReport, ClientResult, ClientTask, Report
from lit_fednas.objectives.base import Objective
from lit_fednas.supernets import Supernet


class TaskLoss(Objective):
    """The loss of the data's task, as it is: cross-entropy for classes (``lit_fednas.data.tasks``).

    Example:
        >>> float(TaskLoss().loss(nn.Identity(), torch.zeros(1, 4), torch.tensor([2])))  # log 4
        1.3862943649291992
    """

    stackable = True

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.data_task.loss(network(inputs), targets)


class CrossEntropy(Objective):
    """Cross-entropy of the network's logits, with label smoothing.

    Args:
        label_smoothing: As in ``torch.nn.functional.cross_entropy``.

    Raises:
        ConfigError: The task of the data has no classes (reported before training).

    Example:
        >>> float(CrossEntropy().loss(nn.Identity(), torch.zeros(1, 4), torch.tensor([2])))  # log 4
        1.3862943649291992
    """

    stackable = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        if not isinstance(clients.task, Classification):
            raise ConfigError(
                f"model.objective: {type(self).__name__} needs classes, and the data's task is "
                f"{type(clients.task).__name__}; use TaskLoss"
            )

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return cast(Classification, self.data_task).loss(network(inputs), targets, self.label_smoothing)


class MaskedCrossEntropy(CrossEntropy):
    """Cross-entropy in which the logits of the classes that a client has no training example of are zero.

    So the client's training leaves their rows of the classifier as they were received (but for weight decay). The
    classes are those of the data; a classifier of another label set is not masked correctly. It reports the client's
    classes, for :class:`~lit_fednas.aggregation.ClassAverage`.

    Args:
        label_smoothing: As in ``torch.nn.functional.cross_entropy``; it is spread over all classes.
    """

    report_types: ClassVar[tuple[type[Report], ...]] = (ClassesReport,)

    @override
    def setup(self, supernet: Supernet, clients: ClientData) -> None:
        super().setup(supernet, clients)
        if not clients.task.labelled:
            raise ConfigError(
                f"model.objective: {type(self).__name__} needs one class per example, and the data's task is "
                f"{type(clients.task).__name__}; use TaskLoss"
            )
        self._num_classes = supernet.num_classes
        self._clients = clients

    @override
    def begin(self, network: nn.Module, task: ClientTask, generator: torch.Generator) -> None:
        self._classes = list(self._clients.classes(task.client))
        self._absent = torch.ones(self._num_classes, dtype=torch.bool)
        self._absent[self._classes] = False

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = network(inputs)
        if len(self._classes) < self._num_classes:
            self._absent = self._absent.to(logits.device)  # copied in a fit's first batch alone
            logits = logits.masked_fill(self._absent, 0.0)
        return functional.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    @override
    def report(self) -> tuple[Report, ...]:
        return (ClassesReport(tuple(self._classes)),)

    @override
    def check_result(self, result: ClientResult) -> None:
        report, own = result.report(ClassesReport), self._clients.classes(result.task.client)
        if report is None or tuple(report.classes) != own:
            raise ValueError(f"{report}, and the client has classes {own}")
