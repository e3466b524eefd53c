"""The sum of the bases' losses: that it trains each as if it were alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lit_fednas.assignment import RandomBases
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.messages import MacsReport
from lit_fednas.objectives import CrossEntropy, HeadOnly, IndependentBases, Objective, Proximal
from lit_fednas.supernets import BaseNetworks, Bases, BatchNorm, GroupNorm
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, TierShares
from tests.support import NO_DATA, assert_same, fit, linear_net, make_module, sgd, tiny_data, weights


def bases(norm=BatchNorm(), count: int = 4) -> BaseNetworks:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks((1, 8, 8), 4, SlicedCNN((8, 8), norm=norm), count)


class Smooth(NetworkFamily):
    """One hidden layer without kinks, so that a rounding of the weights stays one in what they become."""

    def units(self, input_shape):
        return {"hidden": 8}

    def build(self, sizes, input_shape, num_classes, scale=1.0):
        hidden = sizes["hidden"]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, num_classes))


def smooth_bases() -> BaseNetworks:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks((1, 8, 8), 4, Smooth(), 4)


def batches(count: int = 6):
    draws = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(8, 1, 8, 8, generator=draws), torch.randint(4, (8,), generator=draws)


@pytest.mark.parametrize(
    "optimizer",
    [sgd(0.1), sgd(0.1, momentum=0.9, weight_decay=0.01), torch.optim.Adam],
    ids=["sgd", "momentum", "adam"],
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


def test_one_base_trains_as_a_plain_network():
    net = bases(GroupNorm(2), count=1)
    network = net.subnet(net.space.largest)
    twin = copy.deepcopy(network)
    inputs, targets = next(batches())
    loss, plain = IndependentBases().loss(network, inputs, targets), CrossEntropy().loss(twin, inputs, targets)
    assert torch.equal(loss, plain)
    loss.backward()
    plain.backward()
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_the_loss_is_the_sum_and_takes_one_pass():
    network = bases(GroupNorm(2)).subnet(Bases((1, 2)))
    inputs, targets = next(batches())
    expected = sum(cross_entropy(one(inputs), targets, label_smoothing=0.1) for one in network.networks)
    passes = []
    for one in network.networks:
        one.register_forward_hook(lambda *_: passes.append(1))
    loss = IndependentBases(CrossEntropy(label_smoothing=0.1)).loss(network, inputs, targets)
    torch.testing.assert_close(loss, expected)
    assert len(passes) == 2


def test_clients_that_are_trained_together_do_the_same():
    def trained(together: int):
        module = make_module(
            smooth_bases(),
            RandomBases({"weak": 1, "strong": 4}),
            cohort=UniformCohort(count=6),
            client=ClientSettings(sgd(0.1), batch_size=8, clients_per_fit=together),
            objective=IndependentBases(),
            tiers=ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}), TierShares([0.5, 0.5])),
        )
        before = weights(module)
        fit(module, tiny_data(6), max_rounds=2)
        assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(module).items())
        return weights(module)

    assert_same(trained(3), trained(1), rtol=1e-4, atol=1e-5)


class Unstackable(CrossEntropy):
    def loss(self, network, inputs, targets):
        return super().loss(network, inputs, targets)

    def report(self):
        return (MacsReport(3),)


def test_the_objective_inside_is_asked():
    assert IndependentBases().stackable
    assert not IndependentBases(Unstackable()).stackable
    assert IndependentBases(Unstackable()).report() == (MacsReport(3),)
    assert isinstance(IndependentBases(), Objective)


def test_wrong_compositions():
    net = bases()
    IndependentBases().setup(net, NO_DATA)
    with pytest.raises(
        ConfigError, match=r"model.objective: IndependentBases trains several outputs, and PlainNetwork has one;"
    ):
        IndependentBases().setup(linear_net(), NO_DATA)
    for inside in (Proximal(), HeadOnly()):
        with pytest.raises(
            ConfigError,
            match=rf"model.objective.objective: .*put IndependentBases inside {type(inside).__name__}",
        ):
            IndependentBases(inside).setup(net, NO_DATA)
