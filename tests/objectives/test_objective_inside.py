"""Objectives with an inner objective use its loss and statistics, and prepare it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from lit_fednas.messages import ClassStatistics, ClientResult, ClientTask, MacsStatistics, Statistics
from lit_fednas.objectives import Objective, TaskLoss
from tests.federation.methods import IMAGE, NETS, OBJECTIVES, OUTPUTS
from tests.support import NO_DATA

#: A suitable supernet for each objective, by their names in the methods' table.
SUPERNETS = {"bases": "bases", "changes": "widths", "ordered": "widths", "paths": "operators"}
SUPERNETS |= {"proximal": "widths", "side": "exits"}


class DoubleCrossEntropy(Objective):
    """Twice the cross-entropy; records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def setup(self, supernet, clients):
        self.calls.append(supernet)

    def begin(self, network, task, generator):
        self.calls.append(task)

    def loss(self, network, inputs, targets):
        return 2 * functional.cross_entropy(network(inputs), targets)

    def statistics(self) -> tuple[Statistics, ...]:
        return (ClassStatistics([5]), MacsStatistics(-1))


@pytest.mark.parametrize("name", SUPERNETS)
def test_the_inner_objective_gives_loss_and_statistics(name: str) -> None:
    net, inside = NETS[SUPERNETS[name]](IMAGE, OUTPUTS), DoubleCrossEntropy()
    doubled, plain = OBJECTIVES[name](inside), OBJECTIVES[name](TaskLoss())
    task = ClientTask(3, 1, net.space.superset, 48)
    inputs, targets = torch.randn(8, *IMAGE), torch.randint(OUTPUTS, (8,))
    losses = []
    for objective in (doubled, plain):
        objective.setup(net, NO_DATA)
        network = net.subnet(task.arch).train()
        objective.begin(network, task, torch.Generator().manual_seed(0))
        losses.append(torch.stack([objective.loss(network, inputs, targets).detach() for _ in range(6)]))
    torch.testing.assert_close(losses[0], 2 * losses[1])
    assert inside.calls == [net, task]
    result, plain_result = (ClientResult(task, statistics=objective.statistics()) for objective in (doubled, plain))
    assert result.find(ClassStatistics) == ClassStatistics([5])
    assert result.find(MacsStatistics) == (
        plain_result.find(MacsStatistics) or MacsStatistics(-1)
    )  # the outer statistics come first
