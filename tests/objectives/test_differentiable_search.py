"""FedNAS' local step: gradients against formulas and brute force, and who moves what."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.assignment import FixedArchitecture
from lit_fednas.data import Classification
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.messages import ClientTask, MacsReport
from lit_fednas.objectives import (
    ArchitectureGradient,
    DifferentiableSearch,
    FirstOrder,
    MixedLevel,
    Proximal,
    SecondOrder,
)
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import CellSupernet, GroupNorm
from tests.support import fit, make_module, sgd, tiny_data, tiny_supernet

MIXTURE = FixedArchitecture("mixture")


def tiny_cells() -> CellSupernet:
    with isolated(0, "cells"):
        return CellSupernet((1, 8, 8), 4, width=2, cells=3, nodes=1, norm=GroupNorm(2))


# ---- gradients ----------------------------------------------------------------------------------------


class Quadratic:
    """Losses of weights w [3] and architecture parameters a [2] that are quadratic, each with its own numbers."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draws, dtype=torch.float64)

        self.w, self.a = draw(3).requires_grad_(), draw(2).requires_grad_()
        self.train_numbers = (draw(3, 3), draw(3, 2), draw(2, 2))
        self.val_numbers = (draw(3, 3), draw(3, 2), draw(2, 2))

    def loss(self, numbers: tuple[Tensor, ...], w: Tensor, a: Tensor) -> Tensor:
        both, cross, own = numbers
        return (both @ w).square().sum() + w @ cross @ a + (own @ a).square().sum()

    def gradient(self, kind: ArchitectureGradient) -> Tensor:
        (gradient,) = kind.gradients(
            lambda: self.loss(self.train_numbers, self.w, self.a),
            lambda: self.loss(self.val_numbers, self.w, self.a),
            [self.w],
            [self.a],
        )
        return gradient


def test_first_order_is_the_gradient_of_the_validation_loss() -> None:
    case = Quadratic()
    _, cross, own = case.val_numbers
    expected = cross.T @ case.w + 2 * own.T @ own @ case.a
    torch.testing.assert_close(case.gradient(FirstOrder()), expected)


@pytest.mark.parametrize("weight", [0.0, 1.0, 0.3])
def test_mixed_level_adds_the_training_loss(weight: float) -> None:
    case = Quadratic()
    expected = torch.zeros(2, dtype=torch.float64)
    for factor, (_, cross, own) in ((1.0, case.train_numbers), (weight, case.val_numbers)):
        expected = expected + factor * (cross.T @ case.w + 2 * own.T @ own @ case.a)
    torch.testing.assert_close(case.gradient(MixedLevel(weight)), expected)


@pytest.mark.parametrize("lr", [0.01, 0.2])
def test_second_order_is_that_of_the_validation_loss_after_a_step(lr: float) -> None:
    """Brute force: the step on the training loss is differentiated through, and its loss is moved by hand."""
    case = Quadratic()
    w_before = case.w.detach().clone()

    def after(a: Tensor) -> Tensor:
        train = case.loss(case.train_numbers, case.w, a)
        (slope,) = torch.autograd.grad(train, case.w, create_graph=True)
        return case.loss(case.val_numbers, case.w - lr * slope, a)

    (expected,) = torch.autograd.grad(after(case.a), case.a)
    gradient = case.gradient(SecondOrder(lr))
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(gradient, case.gradient(FirstOrder()), rtol=1e-2)
    for place in range(2):
        moved = case.a.detach().clone().requires_grad_(), case.a.detach().clone().requires_grad_()
        with torch.no_grad():
            moved[0][place] += 1e-6
            moved[1][place] -= 1e-6
        slope = (after(moved[0]) - after(moved[1])) / 2e-6
        assert float(gradient[place]) == pytest.approx(slope.item(), rel=1e-5)
    assert torch.equal(case.w, w_before)


# ---- a step -------------------------------------------------------------------------------------------


class Rows:
    """One client whose splits are batches that are known."""

    task = Classification(4)

    num_clients = 1
    reader = None

    def __init__(self, **splits: tuple[Tensor, Tensor]) -> None:
        self.splits = splits
        self.sizes = self.split_sizes("train")

    def split_sizes(self, split: str) -> np.ndarray:
        return np.array([len(self.splits[split][1])])

    def size(self, client: int, split: str = "train") -> int:
        return int(self.split_sizes(split)[client])

    def batches(self, client: int, batch_size: int, draws: torch.Generator, *, split: str, drop_last: bool) -> Any:
        assert client == 0
        assert drop_last
        inputs, targets = self.splits[split]
        return iter([(inputs[:batch_size], targets[:batch_size])])


def some(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = generator(seed, "examples")
    return torch.randn(count, 1, 8, 8, generator=draws), torch.randint(4, (count,), generator=draws)


def begun(objective: Any, val: tuple[Tensor, Tensor]) -> tuple[CellSupernet, Any]:
    net = tiny_cells()
    objective.setup(net, Rows(train=some(6, 0), val=val))
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
    train, val = some(6, 0), some(9, 1)
    objective = DifferentiableSearch(gradient=MixedLevel(0.5))
    _, network = begun(objective, val)
    before = copy.deepcopy(network)
    slopes, val_slopes = grads(before, train), grads(before, (val[0][:6], val[1][:6]))
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


def test_the_local_optimizer_leaves_the_architecture_alone() -> None:
    """With momentum and weight decay, from a fit before as well; the architecture's optimizer is a new one."""
    objective = DifferentiableSearch(lr=1e-30)
    net, network = begun(objective, some(6, 1))
    alphas = [one.detach().clone() for one in network.alphas]
    for _ in range(2):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            objective.loss(network, *some(6, 0)).backward()
            optimizer.step()
        objective.begin(network, ClientTask(1, 0, "mixture", 6), torch.Generator())
    assert all(torch.equal(one, old) for one, old in zip(network.alphas, alphas, strict=True))
    changed = net.subnet("mixture").stem[0].weight - network.stem[0].weight
    assert changed.abs().max() > 1e-3


def test_a_proximal_term_around_it_holds_the_weights_alone() -> None:
    objective = Proximal(DifferentiableSearch(lr=5.0), mu=100.0)
    _, network = begun(objective, some(6, 1))
    loss = objective.loss(network, *some(6, 0))  # weights are as received, alphas are far away
    plain = functional.cross_entropy(network(some(6, 0)[0]), some(6, 0)[1])
    torch.testing.assert_close(loss, plain, rtol=0, atol=1e-5)


# ---- a run --------------------------------------------------------------------------------------------


def search_module(objective: Any, **settings: Any) -> Any:
    client = {"batch_size": 5, "epochs": 2, **settings}
    return make_module(
        tiny_cells(),
        MIXTURE,
        objective=objective,
        cohort=UniformCohort(count=2),
        client=ClientSettings(sgd(0.05), **client),
    )


@pytest.mark.parametrize(("gradient", "passes"), [(FirstOrder(), 2), (MixedLevel(), 3), (SecondOrder(), 5)])
def test_a_round_counts_all_passes_and_averages_both(gradient: ArchitectureGradient, passes: int) -> None:
    """Batches of training and validation data are as large: a first-order step costs twice a plain one."""
    objective, seen = DifferentiableSearch(gradient=gradient), []
    module = search_module(objective)
    before = [one.detach().clone() for one in module.supernet.network.alphas]
    add = module.aggregation.add
    module.aggregation.add = lambda update: (seen.append(copy.deepcopy(update)), add(update))[1]
    fit(module, tiny_data(client_val=0.5), max_rounds=1)
    assert len(seen) == 2
    for update in seen:  # 20 examples: 10 to train on in 2 epochs, 10 to validate on
        assert update.result.num_seen == 20
        assert update.result.report(MacsReport).macs == passes * 20 * module.supernet.macs("mixture")
    for name, one, old in zip(("alphas_normal", "alphas_reduce"), module.supernet.network.alphas, before, strict=True):
        mean = (seen[0].weights[name] + seen[1].weights[name]) / 2
        torch.testing.assert_close(one.detach(), mean)
        assert not torch.equal(one.detach(), old)
    assert not torch.equal(seen[0].weights["alphas_normal"], seen[1].weights["alphas_normal"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client_val": 0.0}, "data.client_val: leaves 6 of 6 clients .client 0. without validation data"),
        ({"in_memory": False, "num_workers": 1}, "data.num_workers: 1 allow one pass .* set it to 0"),
        ({"clients_per_fit": 2}, "DifferentiableSearch"),
        ({"compile": True}, "client.compile: true .* DifferentiableSearch"),
        ({"supernet": tiny_supernet, "arch": "largest"}, "DifferentiableSearch does not work with .* ElasticResNet"),
        ({"arch": "largest"}, "trains a mixture, and client . has normal .* use FixedArchitecture with arch: mixture"),
    ],
)
def test_what_it_cannot_work_with(change: dict[str, Any], words: str) -> None:
    client = {name: change[name] for name in ("clients_per_fit", "compile") if name in change}
    module = search_module(DifferentiableSearch(), **client)
    if "supernet" in change:
        module = make_module(change["supernet"](), objective=DifferentiableSearch())
    elif "arch" in change:
        module.assignment = FixedArchitecture(change["arch"])
    data = {name: change[name] for name in ("client_val", "in_memory", "num_workers") if name in change}
    with pytest.raises(ConfigError, match=words):
        fit(module, tiny_data(**{"client_val": 0.5, **data}), max_rounds=1)
