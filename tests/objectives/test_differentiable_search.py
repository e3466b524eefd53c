"""FedNAS' local step, against formulas and separate gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.data import ClientData, Examples, TensorReader
from lit_fednas.messages import ClientTask, MacsStatistics
from lit_fednas.objectives import DifferentiableSearch
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import CellSupernet, GroupNorm
from tests.support import refusals, tiny_data


def tiny_cells() -> CellSupernet:
    with isolated(0, "cells"):
        return CellSupernet((1, 8, 8), 4, width=2, cells=3, nodes=1, norm=GroupNorm(2))


def random_batch(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = generator(seed, "examples")
    return torch.randn(count, 1, 8, 8, generator=draws), torch.randint(4, (count,), generator=draws)


def start_fit(objective: Any, val: tuple[Tensor, Tensor]) -> tuple[CellSupernet, Any]:
    """Starts the fit of a client with six training examples and the given validation data."""
    net, pairs = tiny_cells(), zip(random_batch(6, 0), val, strict=True)
    rows = {"train": (np.arange(6),), "val": (np.arange(6, 6 + len(val[1])),)}
    objective.setup(net, ClientData(TensorReader(Examples(*map(torch.cat, pairs))), rows))
    network = net.subnet("mixture").train()
    objective.begin(network, ClientTask(0, 0, "mixture", 6), torch.Generator())
    return net, network


def gradients_of(network: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    loss = functional.cross_entropy(network(batch[0]), batch[1])
    parameters = dict(network.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()), allow_unused=True), strict=True))


def test_adam_steps_the_architecture_and_the_weights_follow() -> None:
    """Expects Adam's formula for a first step, and the gradients of the network without the objective."""
    train, val = random_batch(6, 0), random_batch(6, 1)
    objective = DifferentiableSearch(val_weight=0.5)
    _, network = start_fit(objective, val)
    received = copy.deepcopy(network)
    slopes, val_slopes = gradients_of(received, train), gradients_of(received, val)
    loss = objective.loss(network, *train)
    stepped = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for name, parameter in received.named_parameters():
        if name.startswith("alphas_"):
            slope = slopes[name] + 0.5 * val_slopes[name] + 1e-3 * parameter.detach()
            expected = parameter.detach() - 3e-4 * slope / (slope.abs() + 1e-8)
            torch.testing.assert_close(stepped[name], expected)
        else:
            assert torch.equal(stepped[name], parameter), name
    reference = copy.deepcopy(received)
    reference.load_state_dict(stepped)
    torch.testing.assert_close(loss, functional.cross_entropy(reference(train[0]), train[1]))
    loss.backward()
    for name, slope in gradients_of(reference, train).items():
        gradient = dict(network.named_parameters())[name].grad
        if name.startswith("alphas_"):
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, slope, msg=name)
    assert objective.statistics()[0] == MacsStatistics(3 * 6 * tiny_cells().macs("mixture"))


def test_adam_has_the_momentum_of_the_publication() -> None:
    """Expects Adam's formula for a second step, with betas 0.5 and 0.999 and no weight decay."""
    train, val = random_batch(6, 0), random_batch(6, 1)
    objective = DifferentiableSearch(val_weight=0.0, lr=0.1, weight_decay=0.0)
    _, network = start_fit(objective, val)
    slopes = []
    for _ in range(2):
        received = copy.deepcopy(network).requires_grad_()
        slopes.append(gradients_of(received, train)["alphas_reduce"])
        objective.loss(network, *train)
    first = (0.25 * slopes[0] + 0.5 * slopes[1]) / (1 - 0.5**2)
    second = (0.999 * 0.001 * slopes[0] ** 2 + 0.001 * slopes[1] ** 2) / (1 - 0.999**2)
    expected = received.alphas_reduce.detach() - 0.1 * first / (second.sqrt() + 1e-8)
    torch.testing.assert_close(network.alphas_reduce.detach(), expected, rtol=1e-4, atol=1e-5)


def begin(arch: str, **data: Any) -> None:
    objective, net = DifferentiableSearch(), tiny_cells()
    (clients := tiny_data(**{"client_val": 0.5, **data})).setup("fit")
    objective.setup(net, clients.clients)
    task = ClientTask(0, 3, net.space.named(arch), 10)
    objective.begin(net.subnet(task.arch), task, torch.Generator())


test_wrong_data_and_architectures = refusals(
    (lambda: begin("mixture", client_val=0.0), "client_val: leaves 6 of 6 clients .client 0. without validation data"),
    (lambda: begin("largest"), "trains a mixture, and client 3 has normal .* use FixedArchitecture with arch: mixture"),
)
