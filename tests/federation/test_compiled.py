"""Clients whose full batches run through torch.compile, against the same clients without it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, FaultPolicy, FederatedCallback, UniformCohort
from lit_fednas.federation.compiled import check_compilable
from lit_fednas.objectives import CrossEntropy, Proximal, SideObjective
from lit_fednas.supernets import EarlyExitResNet, ElasticResNet, GroupNorm, PlainNetwork, SmallCNN
from tests.support import assert_same, fit, make_module, sgd, tiny_data, weights


@pytest.fixture
def compiled_by(monkeypatch):
    """Counts compilations, and has them done by torch without a C++ compiler."""
    seen = []
    compile = torch.compile

    def count(graph, inputs):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **settings: compile(function, backend=count, **settings))
    torch.compiler.reset()
    yield seen
    torch.compiler.reset()


def made(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def convolutions():
    def make():
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))

    return PlainNetwork(made(make), (1, 8, 8), 4)


class Statuses(FederatedCallback):
    def __init__(self):
        self.all = []

    def on_client_end(self, trainer, module, result, update):
        self.all.append((result.status, result.num_steps))


def run(supernet, rounds=2, faults=FaultPolicy(), **local):
    statuses = Statuses()
    client = ClientSettings(sgd(0.1), batch_size=8, epochs=2, **local)
    module = make_module(copy.deepcopy(supernet), client=client, cohort=UniformCohort(count=4), faults=faults)
    # 20 examples are two full batches and one that is not
    fit(module, tiny_data(), rounds, callbacks=[statuses])
    assert set(statuses.all) == {("ok", 6)}
    return weights(module)


@pytest.mark.parametrize("together", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_equals_uncompiled_training_after_one_compilation(together, compiled_by):
    """Of the batches of 8 and 4 examples those of 8 are compiled, and the parameters keep their names."""
    plain = run(convolutions())
    assert not compiled_by
    compiled = run(convolutions(), clients_per_fit=together, compile=True)
    if together < 3:  # else there are a group of three clients and one alone
        assert len(compiled_by) == 1
    assert "network.0.weight" in compiled
    assert_same(compiled, plain, rtol=1e-5, atol=1e-6)


def test_a_client_is_not_timed_while_its_network_is_compiled(monkeypatch):
    import time

    from lit_fednas.federation import client

    monkeypatch.setattr(client, "compile_network", lambda network, inputs: time.sleep(1.0))
    run(convolutions(), rounds=1, compile=True, faults=FaultPolicy(time_limit=0.8))


def test_global_generator_is_not_moved(compiled_by):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(made(lambda: SmallCNN((1, 8, 8), 4)), compile=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_more_architectures_than_can_be_compiled():
    many = ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[8, 16], depths=[0, 1], ratios=[0.5, 1.0], divisor=2)
    with pytest.raises(ConfigError, match=r"client.compile: true .* each of the supernet's 36 .*compile to false"):
        run(many, compile=True)


def test_a_compilation_that_fails_is_no_clients_fault(monkeypatch):
    compile = torch.compile

    def broken(graph, inputs):
        raise OSError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **settings: compile(function, backend=broken, **settings))
    for together in (1, 2):
        torch.compiler.reset()
        with pytest.raises(ConfigError, match=r"torch.compile failed .*no compiler.*; set client.compile to false"):
            run(convolutions(), compile=True, clients_per_fit=together)
    torch.compiler.reset()


def test_dropout_of_several_clients_cannot_be_compiled():
    with pytest.raises(ConfigError, match="cannot compile dropout for 2 clients"):
        run(SmallCNN((1, 8, 8), 4), compile=True, clients_per_fit=2)


@pytest.mark.slow
def test_equals_uncompiled_training_by_inductor():
    torch.compiler.reset()
    plain = run(convolutions(), rounds=1)
    compiled = run(convolutions(), rounds=1, clients_per_fit=2, compile=True)
    assert_same(compiled, plain, rtol=1e-5, atol=1e-5)


def test_an_objective_that_does_not_call_the_network_is_refused():
    net = EarlyExitResNet((1, 8, 8), 4, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])
    client = ClientSettings(sgd(0.1), batch_size=8, compile=True)
    for objective in (SideObjective(), Proximal(SideObjective())):
        with pytest.raises(
            ConfigError, match=r"client.compile: true compiles .* and (SideObjective|Proximal) runs parts"
        ):
            fit(make_module(net, client=client, objective=objective), tiny_data(), 1)
    check_compilable(net, CrossEntropy())
    check_compilable(net, SideObjective(), clients_per_fit=2)  # then the whole loss is compiled
