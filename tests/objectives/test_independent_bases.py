"""The sum of the bases' losses, against training each base alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from lit_fednas.objectives import CrossEntropy, IndependentBases, Proximal
from lit_fednas.supernets import BaseNetworks, Bases, BatchNorm, GroupNorm, SlicedCNN
from tests.support import NO_DATA, linear_net, refusals, seeded, sgd


def bases(norm=BatchNorm(), count: int = 4) -> BaseNetworks:
    return seeded(BaseNetworks, (1, 8, 8), 4, SlicedCNN((8, 8), norm=norm), count)


def batches(count: int = 6):
    draws = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(8, 1, 8, 8, generator=draws), torch.randint(4, (8,), generator=draws)


@pytest.mark.parametrize(
    "optimizer", [sgd(0.1, momentum=0.9, weight_decay=0.01), torch.optim.Adam], ids=["momentum", "adam"]
)
def test_training_together_is_training_each_alone(optimizer):
    net = bases()
    together = net.subnet(Bases((0, 2, 3))).train()
    alone = copy.deepcopy(together)
    start = copy.deepcopy(together.state_dict())
    step = optimizer(together.parameters())
    objective = IndependentBases()
    for inputs, targets in batches():
        step.zero_grad()
        objective.loss(together, inputs, targets).backward()
        step.step()
    for network in alone.networks:
        step = optimizer(network.parameters())
        for inputs, targets in batches():
            step.zero_grad()
            cross_entropy(network(inputs), targets).backward()
            step.step()
    for name, tensor in together.state_dict().items():
        torch.testing.assert_close(tensor, alone.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)
        if name.endswith("weight"):
            assert not torch.equal(tensor, start[name]), name


def test_the_loss_is_the_sum_and_takes_one_pass():
    network = bases(GroupNorm(2)).subnet(Bases((1, 2)))
    inputs, targets = next(batches())
    expected = sum(cross_entropy(base(inputs), targets, label_smoothing=0.1) for base in network.networks)
    passes = []
    for base in network.networks:
        base.register_forward_hook(lambda *_: passes.append(1))
    loss = IndependentBases(CrossEntropy(label_smoothing=0.1)).loss(network, inputs, targets)
    torch.testing.assert_close(loss, expected)
    assert len(passes) == 2


test_wrong_compositions = refusals(
    (IndependentBases(), linear_net(), "IndependentBases trains several outputs, and PlainNetwork has one;"),
    (IndependentBases(Proximal()), bases(), r"objective.objective: .*put IndependentBases inside Proximal"),
    call=lambda objective, net: objective.setup(net, NO_DATA),
)
