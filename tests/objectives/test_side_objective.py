"""The side objective: one pass has the gradient of several (FedHeN, Alg. 2)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, MacsStatistics
from lit_fednas.objectives import Proximal, SideObjective
from lit_fednas.supernets import EarlyExitResNet, GroupNorm
from tests.support import NO_DATA, seeded

INPUTS = (3, 8, 8)


def net(exits=(1, 3), **settings) -> EarlyExitResNet:
    return seeded(EarlyExitResNet, INPUTS, 5, width=4, norm=GroupNorm(2), blocks=[1, 1, 1], exits=exits, **settings)


def start_fit(supernet, arch):
    objective = SideObjective()
    objective.setup(supernet, NO_DATA)
    network = supernet.subnet(arch)
    objective.begin(network, ClientTask(0, 0, arch, 8), torch.Generator())
    return objective, network


def gradients(network, loss):
    network.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in network.named_parameters()
    }


def test_the_gradient_is_the_sum_of_separate_backward_passes():
    supernet = net((1, 2, 3))
    x, y = torch.randn(6, *INPUTS), torch.tensor([0, 1, 2, 3, 4, 0])
    objective, network = start_fit(supernet, supernet.space.largest)
    together = gradients(network, objective.loss(network, x, y))

    # the network of each exit runs alone: [w]_M of Alg. 2, line 12
    expected = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
    for arch in supernet.space.each():
        alone = supernet.subnet(arch)
        for name, gradient in gradients(alone, functional.cross_entropy(alone(x), y)).items():
            expected[name] += gradient
    for name in expected:
        torch.testing.assert_close(together[name], expected[name], msg=name)
    assert together["heads.1.classifier.weight"].abs().sum() > 0


def test_macs_contain_the_heads():
    supernet = net()
    objective, network = start_fit(supernet, supernet.space.largest)
    for size in (4, 2):
        objective.loss(network, torch.randn(size, *INPUTS), torch.zeros(size, dtype=torch.int64))
    head = 16 * 4 * 5  # the first exit's classifier: four channels of 4x4 pixels, five classes
    assert objective.statistics() == (MacsStatistics(6 * (supernet.cost(supernet.space.largest).macs + head)),)
    objective.begin(network, ClientTask(1, 0, supernet.space.smallest, 8), torch.Generator())
    assert objective.statistics() == (MacsStatistics(0),)


def test_wrong_compositions():
    with pytest.raises(ConfigError, match="Proximal needs a network, and SideObjective gives it only logits"):
        SideObjective(Proximal()).setup(net(), NO_DATA)
    with pytest.raises(ConfigError, match=r"the largest architecture holds one; set supernet.early_heads to true"):
        SideObjective().setup(net(early_heads=False), NO_DATA)
