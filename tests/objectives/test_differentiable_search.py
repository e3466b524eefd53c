"""FedNAS' local step: gradients against formulas and brute force, and who moves what."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.data import ClientData, Examples, TensorReader
from lit_fednas.messages import ClientTask, MacsReport
from lit_fednas.objectives import ArchitectureGradient, DifferentiableSearch, FirstOrder, MixedLevel, SecondOrder
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import CellSupernet, GroupNorm
from tests.support import refusals, tiny_data


def tiny_cells() -> CellSupernet:
    with isolated(0, "cells"):
        return CellSupernet((1, 8, 8), 4, width=2, cells=3, nodes=1, norm=GroupNorm(2))


class Quadratic:
    """Losses of weights w [3] and architecture parameters a [2] that are quadratic, each with its own numbers."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        shapes = [(3,), (2,), *[(3, 3), (3, 2), (2, 2)] * 2]
        self.w, self.a, *numbers = (torch.randn(*one, generator=draws, dtype=torch.float64) for one in shapes)
        self.w.requires_grad_()
        self.a.requires_grad_()
        self.numbers = {"train": numbers[:3], "val": numbers[3:]}

    def loss(self, split: str, w: Tensor | None = None) -> Tensor:
        both, cross, own = self.numbers[split]
        w = self.w if w is None else w
        return (both @ w).square().sum() + w @ cross @ self.a + (own @ self.a).square().sum()

    def stepped(self, lr: float) -> Tensor:
        """The weights after a step on the training loss, which can be differentiated through."""
        (slope,) = torch.autograd.grad(self.loss("train"), self.w, create_graph=True)
        return self.w - lr * slope


@pytest.mark.parametrize(
    ("gradient", "descended"),
    [
        (FirstOrder(), lambda case: case.loss("val")),
        (MixedLevel(0.3), lambda case: case.loss("train") + 0.3 * case.loss("val")),
        (SecondOrder(0.01), lambda case: case.loss("val", case.stepped(0.01))),
        (SecondOrder(0.2), lambda case: case.loss("val", case.stepped(0.2))),
    ],
    ids=["first", "mixed", "second", "second-large"],
)
def test_gradients_are_those_of_the_loss_that_is_descended_on(gradient: ArchitectureGradient, descended: Any) -> None:
    case = Quadratic()
    before = case.w.detach().clone()
    (found,) = gradient.gradients(lambda: case.loss("train"), lambda: case.loss("val"), [case.w], [case.a])
    (expected,) = torch.autograd.grad(descended(case), case.a)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(case.w, before)


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


def test_second_order_does_not_depend_on_the_precision_of_the_fit() -> None:
    """Half precision would not resolve the finite difference."""
    torch.manual_seed(0)
    weight, alpha = torch.nn.Parameter(torch.randn(4, 8)), torch.nn.Parameter(torch.randn(4))
    (train, labels), (val, val_labels) = ((torch.randn(6, 8), torch.randint(4, (6,))) for _ in range(2))

    def gradient() -> Tensor:
        losses = (
            lambda: torch.nn.functional.cross_entropy((train @ weight.T) * alpha, labels),
            lambda: torch.nn.functional.cross_entropy((val @ weight.T) * alpha, val_labels),
        )
        return SecondOrder(0.5).gradients(*losses, [weight], [alpha])[0]

    exact = gradient()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gradient(), exact)


def test_adam_steps_the_architecture_and_the_weights_follow() -> None:
    """Against Adam's formula for a first step, and plain gradients of the network by itself."""
    train, val = some(6, 0), some(6, 1)
    objective = DifferentiableSearch(gradient=MixedLevel(0.5))
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
    objective = DifferentiableSearch(gradient=FirstOrder(), lr=0.1, weight_decay=0.0)
    _, network = begun(objective, val)
    slopes = []
    for _ in range(2):
        before = copy.deepcopy(network).requires_grad_()
        slopes.append(grads(before, val)["alphas_reduce"])
        objective.loss(network, *train)
    first = (0.25 * slopes[0] + 0.5 * slopes[1]) / (1 - 0.5**2)
    second = (0.999 * 0.001 * slopes[0] ** 2 + 0.001 * slopes[1] ** 2) / (1 - 0.999**2)
    expected = before.alphas_reduce.detach() - 0.1 * first / (second.sqrt() + 1e-8)
    torch.testing.assert_close(network.alphas_reduce.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gradient", "passes"), [(FirstOrder(), 2), (SecondOrder(), 5)])
def test_all_passes_are_counted(gradient: ArchitectureGradient, passes: int) -> None:
    """Batches of training and validation data are as large: a first-order step costs twice a plain one."""
    objective = DifferentiableSearch(gradient=gradient)
    net, network = begun(objective, some(9, 1))
    for _ in range(2):
        objective.loss(network, *some(6, 0))
    assert objective.report() == (MacsReport(passes * 12 * net.macs("mixture")),)


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
