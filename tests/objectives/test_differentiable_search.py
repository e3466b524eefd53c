"""FedNAS' local step: gradients against formulas and brute force, and who moves what."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.data import ClientData, Examples, TensorReader
from lit_fednas.messages import ClientTask, MacsReport
from lit_fednas.objectives import DifferentiableSearch
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import CellSupernet, GroupNorm
from tests.support import refusals, tiny_data


def tiny_cells() -> CellSupernet:
    with isolated(0, "cells"):
        return CellSupernet((1, 8, 8), 4, width=2, cells=3, nodes=1, norm=GroupNorm(2))


def some(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = generator(seed, "examples")
    return torch.randn(count, 1, 8, 8, generator=draws), torch.randint(4, (count,), generator=draws)


def begun(objective: Any, val: tuple[Tensor, Tensor]) -> tuple[CellSupernet, Any]:
    """One client, with six examples to train on and others to validate."""
    net, both = tiny_cells(), zip(some(6, 0), val, strict=True)
    rows = {"train": (np.arange(6),), "val": (np.arange(6, 6 + len(val[1])),)}
    objective.setup(net, ClientData(TensorReader(Examples(*map(torch.cat, both))), rows))
    network = net.subnet("mixture").train()
    objective.begin(network, ClientTask(0, 0, "mixture", 6), torch.Generator())
    return net, network


def grads(network: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    loss = functional.cross_entropy(network(batch[0]), batch[1])
    named = dict(network.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))


def test_adam_steps_the_architecture_and_the_weights_follow() -> None:
    """Against Adam's formula for a first step, and plain gradients of the network by itself."""
    train, val = some(6, 0), some(6, 1)
    objective = DifferentiableSearch(val_weight=0.5)
    _, network = begun(objective, val)
    before = copy.deepcopy(network)
    slopes, val_slopes = grads(before, train), grads(before, val)
    loss = objective.loss(network, *train)
    stepped = {name: one.detach().clone() for name, one in network.named_parameters()}
    for name, one in before.named_parameters():
        if name.startswith("alphas_"):
            slope = slopes[name] + 0.5 * val_slopes[name] + 1e-3 * one.detach()
            expected = one.detach() - 3e-4 * slope / (slope.abs() + 1e-8)
            torch.testing.assert_close(stepped[name], expected)
        else:
            assert torch.equal(stepped[name], one), name
    reference = copy.deepcopy(before)
    reference.load_state_dict(stepped)
    torch.testing.assert_close(loss, functional.cross_entropy(reference(train[0]), train[1]))
    loss.backward()
    for name, slope in grads(reference, train).items():
        own = dict(network.named_parameters())[name].grad
        if name.startswith("alphas_"):
            assert own is None
        else:
            torch.testing.assert_close(own, slope, msg=name)
    assert objective.report()[0] == MacsReport(3 * 6 * tiny_cells().macs("mixture"))


def test_adam_has_the_momentum_of_the_publication() -> None:
    """Adam's formula for a second step: betas 0.5 and 0.999, no weight decay."""
    train, val = some(6, 0), some(6, 1)
    objective = DifferentiableSearch(val_weight=0.0, lr=0.1, weight_decay=0.0)
    _, network = begun(objective, val)
    slopes = []
    for _ in range(2):
        before = copy.deepcopy(network).requires_grad_()
        slopes.append(grads(before, train)["alphas_reduce"])
        objective.loss(network, *train)
    first = (0.25 * slopes[0] + 0.5 * slopes[1]) / (1 - 0.5**2)
    second = (0.999 * 0.001 * slopes[0] ** 2 + 0.001 * slopes[1] ** 2) / (1 - 0.999**2)
    expected = before.alphas_reduce.detach() - 0.1 * first / (second.sqrt() + 1e-8)
    torch.testing.assert_close(network.alphas_reduce.detach(), expected, rtol=1e-4, atol=1e-5)


def begin(arch: str, **data: Any) -> None:
    objective, net = DifferentiableSearch(), tiny_cells()
    (clients := tiny_data(**{"client_val": 0.5, **data})).setup("fit")
    objective.setup(net, clients.clients)
    task = ClientTask(0, 3, net.space.named(arch), 10)
    objective.begin(net.subnet(task.arch), task, torch.Generator())


test_what_it_cannot_work_with = refusals(
    (lambda: begin("mixture", client_val=0.0), "client_val: leaves 6 of 6 clients .client 0. without validation data"),
    (lambda: begin("largest"), "trains a mixture, and client 3 has normal .* use FixedArchitecture with arch: mixture"),
)
