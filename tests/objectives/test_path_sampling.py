"""Client-side path sampling (section 3.1, Eq. 2 to 4), batch by batch against the paths that the network ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.messages import ClientTask, MacsStatistics, OperatorStatistics
from lit_fednas.objectives import PathSampling
from lit_fednas.supernets import Operators, PathCNN, PathSampler
from tests.support import NO_DATA, assert_same, seeded

NET = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2])
HALF = Operators(
    (("conv1", "sep_e2", "mb3_e1", "id"), ("sep_e05", "mb1_e2", "mb3_e2", "id"), ("conv1", "mb3_e05", "id"))
)
SIZES = (8, 8, 8, 5)


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of 8, 8, 8 and 5 examples in turn."""
    draws = torch.Generator().manual_seed(seed)
    for number in range(count):
        size = SIZES[number % 4]
        inputs = torch.randn(size, 1, 8, 8, generator=draws)
        yield inputs, torch.randint(4, (size,), generator=draws)


class Step(NamedTuple):
    """The path, the size and the loss of one batch."""

    path: Operators
    size: int
    loss: Tensor


def task(arch: Operators = HALF, **settings: Any) -> ClientTask:
    return ClientTask(round=3, client=1, arch=arch, num_examples=29, **settings)


def start_fit(objective: PathSampling, client_task: ClientTask, seed: int = 0) -> nn.Module:
    """Starts a fit of the objective, and returns the client's network."""
    network = seeded(NET.subnet, client_task.arch)
    objective.setup(NET, NO_DATA)
    objective.begin(network, client_task, torch.Generator().manual_seed(seed))
    return network


def train(
    objective: PathSampling, client_task: ClientTask, count: int, seed: int = 0, inputs_seed: int = 0
) -> list[Step]:
    """Runs a plain fit, and returns its steps."""
    network = start_fit(objective, client_task, seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    steps = []
    for inputs, targets in batches(count, inputs_seed):
        optimizer.zero_grad(set_to_none=True)
        loss = objective.loss(network, inputs, targets)
        loss.backward()
        optimizer.step()
        path = Operators(tuple((name,) for name in network.path))
        steps.append(Step(path, len(targets), loss.detach()))
    return steps


def limited(share: float, cost: str = "operations") -> dict[str, float]:
    """Returns a limit between the cheapest and the most expensive path of the subspace."""
    costs = NET.path_costs(cost)
    lowest = costs.fixed + sum(min(layer.values()) for layer in costs.operator_costs(HALF))
    return {cost: float(lowest + share * (costs.of(HALF) - lowest))}


def test_a_new_path_of_the_subspace_for_every_batch():
    steps = train(PathSampling(), task(), 60)
    assert len({step.path for step in steps}) > 25  # there are 48 paths
    for step in steps:
        assert step.path.is_path
        assert all(name in names for (name,), names in zip(step.path.layers, HALF.layers, strict=True))
    seen = {(layer, name) for step in steps for layer, (name,) in enumerate(step.path.layers)}
    assert seen == {(layer, name) for layer, names in enumerate(HALF.layers) for name in names}


@pytest.mark.parametrize(("cost", "share"), [("operations", 0.0), ("operations", 0.6), ("bytes", 1.0)])
def test_no_path_is_above_the_limit(cost, share):
    objective, limits = PathSampling(), limited(share, cost)
    steps = train(objective, task(limits=limits, tier="weak"), 40)
    costs = [NET.path_costs(cost).of(step.path) for step in steps]
    assert max(costs) <= limits[cost]
    assert (len(set(costs)) == 1) == (share == 0)


def test_a_single_path_trains_as_without_sampling():
    """Degenerate case: a client that received one path takes the same steps as with cross-entropy."""
    path = NET.space.parse("sep_e1 mb1_e2 conv1")
    objective = PathSampling()
    network = start_fit(objective, task(path))
    plain = NET.subnet(path)
    plain.load_state_dict(network.state_dict())
    for inputs, targets in batches(4):
        for trained, loss in ((network, objective.loss(network, inputs, targets)), (plain, None)):
            loss = functional.cross_entropy(plain(inputs), targets) if loss is None else loss
            trained.zero_grad()
            loss.backward()
            torch.optim.SGD(trained.parameters(), lr=0.1).step()
    assert_same(dict(network.state_dict()), dict(plain.state_dict()))


def test_examples_by_operator_and_multiply_accumulates():
    objective = PathSampling()
    steps = train(objective, task(limits=limited(0.6)), 30)
    operators, macs = objective.statistics()
    expected: Counter[str] = Counter()
    for step in steps:
        for layer, (name,) in enumerate(step.path.layers):
            expected[f"layers.{layer}.{name}"] += step.size
    assert operators == OperatorStatistics(dict(expected))
    assert macs == MacsStatistics(sum(NET.macs(step.path) * step.size for step in steps))


def operator(name: str) -> str | None:
    """Returns the operator of a tensor: ``3.sep_e1`` of ``layers.3.sep_e1.block.0.0.weight``; none of fixed parts."""
    first, *rest = name.split(".")
    return ".".join(rest[:2]) if first == "layers" else None


def test_operators_off_the_path_stay_unchanged():
    """They get no gradient; weights, statistics and momentum stay, also of operators that an earlier batch trained."""
    objective = PathSampling()
    network = start_fit(objective, task())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    num_unchanged, num_changed, num_momenta = 0, 0, 0
    for inputs, targets in batches(12):
        weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        momentum = {
            name: optimizer.state[parameter]["momentum_buffer"].clone()
            for name, parameter in network.named_parameters()
            if optimizer.state[parameter]
        }
        optimizer.zero_grad(set_to_none=True)
        objective.loss(network, inputs, targets).backward()
        optimizer.step()
        running = {f"{layer}.{name}" for layer, name in enumerate(network.path)}
        for name, parameter in network.named_parameters():
            if operator(name) is None or operator(name) in running:
                assert parameter.grad is not None, name
                continue
            assert parameter.grad is None, name
            if name in momentum:
                num_momenta += 1
                assert torch.equal(optimizer.state[parameter]["momentum_buffer"], momentum[name]), name
        for name, tensor in network.state_dict().items():
            if operator(name) is None or operator(name) in running:
                num_changed += not torch.equal(tensor, weights[name])
            else:
                num_unchanged += 1
                assert torch.equal(tensor, weights[name]), name
    assert min(num_unchanged, num_changed, num_momenta) > 50


def test_a_busy_client_uses_only_its_free_share(monkeypatch):
    """Every batch draws a share uniformly up to 1."""
    shares, sample = [], PathSampler.sample

    def recording_sample(sampler, rng, free):
        shares.append(free)
        return sample(sampler, rng, free)

    monkeypatch.setattr(PathSampler, "sample", recording_sample)
    limits = limited(0.8)
    steps = train(PathSampling(least_free=0.2), task(limits=limits), 200)
    assert (min(shares), np.mean(shares), max(shares)) == pytest.approx((0.2, 0.6, 1.0), abs=0.05)
    lowest, highest = NET.operations(NET.space.parse("id id id")), limits["operations"]
    costs = [NET.operations(step.path) for step in steps]
    assert all(cost <= lowest + free * (highest - lowest) + 1e-6 for cost, free in zip(costs, shares, strict=True))
    assert max(costs) > lowest + 0.6 * (highest - lowest)
