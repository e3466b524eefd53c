"""FedProx' term, against a value and a gradient by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.messages import ClientTask
from lit_fednas.objectives import CrossEntropy, Proximal


@pytest.mark.parametrize("mu", [0.01, 2.0])
def test_value_and_gradient_by_hand(mu: float) -> None:
    """Moves all parameters of two layers with a norm between at random, also a frozen bias."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
        inputs, targets = torch.randn(8, 5), torch.randint(3, (8,))
        moves = [0.3 * torch.randn(parameter.shape) for parameter in net.parameters()]
    net[0].bias.requires_grad_(False)
    received = copy.deepcopy(dict(net.named_parameters()))
    proximal = Proximal(CrossEntropy(), mu=mu)
    proximal.begin(net, ClientTask(round=0, client=0, arch="whole", num_examples=8), torch.Generator())
    with torch.no_grad():
        for parameter, move in zip(net.parameters(), moves, strict=True):
            parameter.add_(move)
    plain = copy.deepcopy(net)
    expected = functional.cross_entropy(plain(inputs), targets)
    expected.backward()
    loss = proximal.loss(net, inputs, targets)
    loss.backward()
    squares = 0.0
    for (name, parameter), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        if not parameter.requires_grad:
            assert name == "0.bias"
            assert parameter.grad is None
            continue
        difference = (parameter - received[name]).detach()
        squares += float(difference.double().square().sum())
        assert other.grad is not None
        torch.testing.assert_close(parameter.grad, other.grad + mu * difference, msg=name)
    assert squares > 1
    torch.testing.assert_close(float(loss.detach()), float(expected.detach()) + mu / 2 * squares)
