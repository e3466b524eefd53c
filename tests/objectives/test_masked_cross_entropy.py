"""The masked cross-entropy, by hand, and its effect on a classifier."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lit_fednas.data import ClientData, Examples, TensorReader
from lit_fednas.messages import ClassStatistics, ClientTask
from lit_fednas.objectives import CrossEntropy, MaskedCrossEntropy
from lit_fednas.supernets import PlainNetwork
from tests.support import seeded

CLASSES = ((1, 3), (0, 1, 2, 3), (2,))
ROWS = (np.array([0, 1, 2]), np.array([3, 4, 5, 6]), np.array([7, 7]))
EXAMPLES = Examples(torch.rand(8, 2), torch.tensor([3, 1, 3, 0, 1, 2, 3, 2]))
CLIENTS = ClientData(TensorReader(EXAMPLES), {"train": ROWS})


def start_fit(client: int, **settings: float) -> tuple[nn.Linear, MaskedCrossEntropy]:
    supernet = seeded(lambda: PlainNetwork(nn.Linear(2, 4), (2,), 4))
    network = supernet.subnet("whole")
    assert isinstance(network, nn.Linear)
    objective = MaskedCrossEntropy(**settings)
    objective.setup(supernet, CLIENTS)
    for number in ((client + 1) % 3, client):  # an earlier fit of another client has no effect
        objective.begin(network, ClientTask(0, number, "whole", len(ROWS[number])), torch.Generator())
    return network, objective


def batch(client: int) -> tuple[Tensor, Tensor]:
    examples = CLIENTS.reader.dataset  # type: ignore[attr-defined]
    return examples.inputs[ROWS[client]], examples.targets[ROWS[client]]


class ConstantLogits(nn.Module):
    """Gives the same logits for every example."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([logits]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits


def test_by_hand() -> None:
    """Client 0 has classes 1 and 3: logits 0 and 2 count as 0. A smoothing of 0.2 is 0.05 for each of four classes."""
    _, objective = start_fit(0)
    constant = ConstantLogits([5.0, 1.0, -7.0, 2.0])
    loss = objective.loss(constant, torch.zeros(1, 2), torch.tensor([3]))
    total = 1 + exp(1) + 1 + exp(2)
    assert float(loss.detach()) == pytest.approx(log(total) - 2)
    loss.backward()
    assert constant.logits.grad is not None
    _, smoothed = start_fit(0, label_smoothing=0.2)
    assert float(smoothed.loss(constant, torch.zeros(1, 2), torch.tensor([3])).detach()) == pytest.approx(
        log(total) - 0.85 * 2 - 0.05 * 1
    )
    assert constant.logits.grad[0].tolist() == pytest.approx([0, exp(1) / total, 0, exp(2) / total - 1])


@pytest.mark.parametrize("client", [0, 1, 2])
def test_rows_of_absent_classes_stay_and_the_others_move(client: int) -> None:
    network, objective = start_fit(client)
    assert objective.statistics() == (ClassStatistics(CLASSES[client]),)
    received = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        objective.loss(network, *batch(client)).backward()
        optimizer.step()
    for row in range(4):
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor[row], received[name][row]) == (row not in CLASSES[client]), (name, row)


def test_with_all_classes_it_is_cross_entropy() -> None:
    network, objective = start_fit(1, label_smoothing=0.1)
    assert torch.equal(objective.loss(network, *batch(1)), CrossEntropy(0.1).loss(network, *batch(1)))
