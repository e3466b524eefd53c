"""Clients with compiled full batches, against the same clients without compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, FaultPolicy, UniformCohort
from lit_fednas.objectives import Proximal, SideObjective
from lit_fednas.supernets import EarlyExitResNet, GroupNorm, PlainNetwork
from tests.federation.runs import Results
from tests.support import assert_same, fit, make_module, refusals, seeded, sgd, tiny_data, tiny_supernet, weights


@pytest.fixture
def compiled_by(monkeypatch):
    """Counts compilations, which run without a C++ compiler."""
    seen = []
    compile = torch.compile

    def count(graph, inputs, **settings):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **settings: compile(function, backend=count, **settings))
    torch.compiler.reset()
    yield seen
    torch.compiler.reset()


def convolutions():
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4)
    return PlainNetwork(nn.Sequential(*layers), (1, 8, 8), 4)


def run(supernet=None, rounds=2, faults=FaultPolicy(), objective=None, **local):
    client = ClientSettings(sgd(0.1), batch_size=8, epochs=2, **local)
    parts = {"objective": objective} if objective else {}
    cohort = UniformCohort(count=4)
    module = make_module(supernet or seeded(convolutions), client=client, cohort=cohort, faults=faults, **parts)
    # 20 examples are two full batches and a smaller one
    results = Results()
    fit(module, tiny_data(), rounds, callbacks=[results])
    assert {(result.status, result.num_steps) for result in results.all} == {("ok", 6)}
    return weights(module)


@pytest.mark.parametrize("together", [1, 2])
def test_equals_uncompiled_training_after_one_compilation(together, compiled_by):
    """Only batches of 8 examples are compiled, not those of 4, and the parameters keep their names."""
    plain = run(rounds=1)
    assert not compiled_by
    compiled = run(rounds=1, clients_per_fit=together, compile=True)
    assert len(compiled_by) == 1
    assert "network.0.weight" in compiled
    assert_same(compiled, plain, rtol=1e-5, atol=1e-6)


def test_a_failed_compilation_is_a_configuration_error(monkeypatch):
    compile = torch.compile

    def broken(graph, inputs, **settings):
        raise OSError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **settings: compile(function, backend=broken, **settings))
    torch.compiler.reset()
    with pytest.raises(ConfigError, match=r"torch.compile failed .*no compiler.*; set client.compile to false"):
        run(compile=True)
    torch.compiler.reset()


@pytest.mark.slow
def test_equals_uncompiled_training_by_inductor():
    torch.compiler.reset()
    plain = run(rounds=1)
    compiled = run(rounds=1, clients_per_fit=2, compile=True)
    assert_same(compiled, plain, rtol=1e-5, atol=1e-5)


EXITS = EarlyExitResNet((1, 8, 8), 4, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])


test_impossible_compilations_are_refused = refusals(
    ({"supernet": tiny_supernet(depths=[0, 1, 2])}, r"client.compile: true .* supernet's \d+ .*compile to false"),
    (
        {"supernet": EXITS, "objective": Proximal(SideObjective())},
        r"client.compile: true .* Proximal runs parts of it; set",
    ),
    call=lambda settings: run(compile=True, **settings),
)
