"""FedProx' term, against its gradient worked out by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.messages import ClientTask
from lit_fednas.objectives import CrossEntropy, Objective, Proximal

TASK = ClientTask(round=0, client=0, arch="whole", num_examples=8)


def network(seed: int = 0) -> nn.Module:
    """Two layers with a norm between, one bias of them frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    net[0].bias.requires_grad_(False)
    return net


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(8, 5, generator=draws), torch.randint(3, (8,), generator=draws)


def moved(net: nn.Module, by: float = 0.3) -> None:
    """Moves all parameters, the frozen one too, at random."""
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=draws))


def begun(net: nn.Module, objective: Objective | None = None, **settings: Any) -> Proximal:
    proximal = Proximal(objective or CrossEntropy(), **settings)
    proximal.begin(net, TASK, torch.Generator())
    return proximal


@pytest.mark.parametrize("mu", [0.01, 2.0])
def test_value_and_gradient_by_hand(mu: float) -> None:
    net = network()
    received = copy.deepcopy(dict(net.named_parameters()))
    proximal = begun(net, mu=mu)
    moved(net)
    inputs, targets = batch()
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
