"""HeteroFL's loss (Diao et al., 2021, section 3: the masking trick)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClassStatistics, ClientResult, ClientTask, Statistics
from lit_fednas.objectives.base import CrossEntropy
from lit_fednas.supernets import Supernet


class MaskedCrossEntropy(CrossEntropy):
    """Cross-entropy that sets the logits of a class to zero if the client has no training example of it.

    Training therefore leaves the classifier's row of such a class unchanged, except for weight decay. The client
    sends its classes, for :class:`~lit_fednas.aggregation.ClassAverage`.

    Args:
        label_smoothing: The share of each target that is spread over all classes, also masked ones, from 0 to 1.
    """

    statistics_types: ClassVar[tuple[type[Statistics], ...]] = (ClassStatistics,)

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
        self._absent = torch.ones(self._num_classes, dtype=torch.bool, device=next(network.parameters()).device)
        self._absent[self._classes] = False

    @override
    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = network(inputs).masked_fill(self._absent, 0.0)
        return functional.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    @override
    def statistics(self) -> tuple[Statistics, ...]:
        return (ClassStatistics(tuple(self._classes)),)

    @override
    def check_result(self, result: ClientResult) -> None:
        statistics, classes = result.find(ClassStatistics), self._clients.classes(result.task.client)
        if statistics is None or tuple(statistics.classes) != classes:
            raise ValueError(f"{statistics} differs from the client's classes {classes}")
