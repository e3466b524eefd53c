"""Stacked clients, against the same clients trained one by one."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lit_fednas.assignment import TrackingSandwich
from lit_fednas.data import IID, ArraySource, Dirichlet, FederatedDataModule
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation import ClientSettings, CosineRate, FaultPolicy, UniformCohort
from lit_fednas.federation.stacked import StackedModule
from lit_fednas.objectives import CrossEntropy
from lit_fednas.supernets import BatchNorm, ElasticTransformer, GroupNorm, PlainNetwork
from tests.federation.runs import Results
from tests.federation.tokens import LENGTH, VOCABULARY, token_data
from tests.support import (
    assert_same,
    fit,
    linear_net,
    make_module,
    one_of_many,
    seeded,
    sgd,
    tiny_data,
    tiny_examples,
    tiny_supernet,
    weights,
)

CLIENTS = 7


def unequal_data(num_clients=CLIENTS, normalization=lambda images: images.double() / 255, **settings):
    """Returns unequal clients with inputs as doubles, so that the order of sums hardly matters."""
    splits = tiny_examples(), tiny_examples(40, 1), tiny_examples(40, 2)
    settings = {"partitioner": Dirichlet(1.0, min_size=4), **settings}
    return FederatedDataModule(ArraySource(*splits, normalization=normalization), num_clients=num_clients, **settings)


def plain(*layers):
    return PlainNetwork(nn.Sequential(nn.Flatten(), *layers), (1, 8, 8), 4)


def run(together, supernet=None, data=None, rounds=2, local=None, **settings):
    """Trains some rounds in doubles; returns the results of all clients and the weights."""
    results = Results()
    module = make_module(
        copy.deepcopy(supernet or tiny_supernet(norm=GroupNorm(2))).double(),
        client=ClientSettings(**{"optimizer": sgd(0.1), "batch_size": 8, **(local or {})}, clients_per_fit=together),
        **{"cohort": UniformCohort(count=CLIENTS), **settings},
    )
    torch.set_default_dtype(torch.float64)
    try:
        fit(module, data or unequal_data(), rounds, callbacks=[results])
    finally:
        torch.set_default_dtype(torch.float32)
    return {(result.task.round, result.task.client): result for result in results.all}, weights(module)


def both(together=4, supernet=None, data=unequal_data, **settings):
    """Compares clients trained one by one and stacked, up to the order of float sums; returns the stacked results."""
    (others, other_tensors), (results, tensors) = (
        run(count, supernet and seeded(supernet), data(), **settings) for count in (1, together)
    )
    assert results.keys() == others.keys()
    for key, result in results.items():
        counts = ("task", "status", "num_steps", "num_seen")
        assert [getattr(result, name) for name in counts] == [getattr(others[key], name) for name in counts]
        # averages are of float32, and so are the weights of the second round
        assert result.loss == pytest.approx(others[key].loss, rel=1e-7, nan_ok=True)
    assert_same(tensors, other_tensors, rtol=1e-6, atol=1e-7)
    return results, tensors


@pytest.fixture
def stacked_fits(monkeypatch):
    """Records the number of clients of each finished stacked fit."""
    seen = []
    end = StackedModule.on_train_end

    def counted(self):
        end(self)
        seen.append(len(self.clients))

    monkeypatch.setattr(StackedModule, "on_train_end", counted)
    return seen


BARE = BatchNorm(affine=False, running_statistics=False)
SHORT = {"epochs": 2, "batch_size": 9, "optimizer": sgd(0.05, momentum=0.9)}
ADAM = {"optimizer": partial(torch.optim.Adam, lr=0.003)}
#: Each setting of a fit, some in combination; other networks; and data that are read one pass at a time.
CASES = {
    "momentum": {"local": {"epochs": 2, "optimizer": sgd(0.1, momentum=0.9, weight_decay=0.01), "drop_last": True}},
    "nesterov": {
        "local": {"steps": 7, "optimizer": sgd(0.05, momentum=0.9, nesterov=True), "lr_schedule": CosineRate(0.1)},
        "rounds": 2,
    },
    "adam": {"local": {"epochs": 2, **ADAM}},
    "clip_norm": {"local": {"epochs": 2, "optimizer": sgd(0.5), "clip_norm": 0.2}},
    "bare": {"supernet": lambda: tiny_supernet(norm=BARE), "local": SHORT},
    "running": {"supernet": lambda: tiny_supernet(norm=BatchNorm()), "local": SHORT},
    "transformer": {
        "supernet": lambda: ElasticTransformer((LENGTH,), VOCABULARY, dim=8),
        "data": token_data,
    },
    "loader": {"data": lambda: unequal_data(in_memory=False, num_workers=1), "local": {"steps": 7}},
}


# torch warns that it computes attention under vmap on a CPU client by client
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", one_of_many(CASES, "clip_norm", "running", "transformer"))
def test_equals_one_by_one(name, stacked_fits):
    case = {"rounds": 1, **CASES[name]}
    results, tensors = both(**case)
    assert stacked_fits == [4, 3] * case["rounds"]
    assert len({result.num_seen for result in results.values()}) > 1  # some clients end early
    if name == "running":
        assert tensors["network.norm.running_mean"].any()
        assert tensors["network.norm.num_batches_tracked"] > 0


def six_alike():
    return unequal_data(6, partitioner=IID())


SIX = {"cohort": UniformCohort(count=6), "rounds": 1}


def test_batch_norm_skips_batches_of_one_example(stacked_fits):
    """With 20 examples and batches of 19, the last batch of one is skipped, and the next epoch follows."""
    results, _ = both(6, tiny_supernet, six_alike, local={"batch_size": 19, "epochs": 3}, **SIX)
    assert {(r.num_steps, r.num_seen) for r in results.values()} == {(3, 57)}
    assert stacked_fits == [6]


def test_groups_are_of_one_architecture_and_similar_size(monkeypatch):
    # a space of 16 members, so that some of 12 clients share one
    groups, start = [], StackedModule.on_train_start
    monkeypatch.setattr(
        StackedModule,
        "on_train_start",
        lambda self: groups.append([client.task for client in self.clients]) or start(self),
    )
    data = {"data": lambda: unequal_data(12), "cohort": UniformCohort(count=12), "rounds": 1}
    both(4, lambda: tiny_supernet(norm=BARE), assignment=TrackingSandwich(), **data)
    assert 1 < max(map(len, groups)) <= 4
    for group in groups:
        assert len({task.arch for task in group}) == 1
        sizes = [task.num_examples for task in group]
        assert sizes == sorted(sizes, reverse=True)


def test_parameters_without_gradient_stay(stacked_fits):
    """One parameter is frozen, another is not used; weight decay changes neither."""

    def partly():
        net = plain(nn.Linear(64, 8), nn.Linear(8, 4))
        net.network.unused = nn.Parameter(torch.ones(3))
        net.network[1].bias.requires_grad_(False)
        return net

    _, tensors = both(supernet=partly, local={"optimizer": sgd(0.1, weight_decay=0.1)}, rounds=1)
    assert torch.equal(tensors["network.unused"], torch.ones(3, dtype=torch.float64))
    assert stacked_fits


# ---- faults ---------------------------------------------------------------------------------------------


def test_only_the_client_with_a_bad_label_is_lost(caplog):
    def faulty():
        data = six_alike()
        data.setup("fit")
        data.clients.reader.dataset.targets[int(data.clients.rows(2)[3])] = 9
        return data

    with caplog.at_level(logging.WARNING):
        results, _ = both(6, data=faulty, **SIX)
    status = {client: result.status for (_, client), result in results.items()}
    assert status == {0: "ok", 1: "ok", 2: "error", 3: "ok", 4: "ok", 5: "ok"}
    assert re.search(r"round 1, clients \d(, \d){5}: .*out of bounds.*one by one", caplog.text)
    with pytest.raises(ClientError, match="round 1, client 2: IndexError"):
        run(6, data=faulty(), faults=FaultPolicy(on_client_error="raise"), **SIX)


def test_weights_that_are_not_finite_affect_one_client(stacked_fits):
    def wild():
        data = six_alike()
        data.setup("fit")
        examples = data.clients.reader.dataset
        inputs = examples.inputs.double()
        inputs[data.clients.rows(3)[0]] = math.nan
        data.clients.reader.dataset = dataclasses.replace(examples, inputs=inputs)
        return data

    results, _ = both(6, linear_net, wild, local={"epochs": 2, "clip_norm": 0.5}, **SIX)
    assert stacked_fits == [6]
    assert {client for (_, client), result in results.items() if result.status == "non-finite"} == {3}
    with pytest.raises(ClientError, match="round 1, client 3: the trained weights are not finite"):
        run(6, linear_net(), wild(), faults=FaultPolicy(on_client_error="raise"), **SIX)


# ---- refusals ---------------------------------------------------------------------------------------------


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Peek(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > -1e9 else -x


class Stateful(CrossEntropy):
    """A subclass of a stackable objective that is not stackable itself."""

    def loss(self, network, inputs, targets):
        self.calls = getattr(self, "calls", 0) + 1
        return super().loss(network, inputs, targets)


LINEAR = nn.Linear(64, 4)
REFUSED = {
    "noise": ({"supernet": plain(Noise(), LINEAR)}, "draws random numbers, as dropout does"),
    "peek": ({"supernet": plain(Peek(), LINEAR)}, "cannot be stacked"),
    "objective": ({"objective": Stateful()}, "objective Stateful is not stackable"),
    "optimizer": ({"local": {"optimizer": torch.optim.LBFGS}}, "optimizer is LBFGS"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_parts_that_cannot_be_stacked_are_refused_before_training(settings, message, stacked_fits):
    with pytest.raises(ConfigError, match=message) as caught:
        run(4, **settings)
    assert str(caught.value).startswith("client.clients_per_fit: 4")
    assert "set client.clients_per_fit to 1" in str(caught.value)
    assert stacked_fits == []


# ---- synchronisation with a device -------------------------------------------------------------------------


class Waits(TorchDispatchMode):
    """Counts the operations that make the processor wait for a device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("together", [1, 3])
def test_waits_for_the_device_grow_neither_with_steps_nor_with_clients(together):
    def waits(epochs, clients):
        local = {"batch_size": 8, "epochs": epochs, "clip_norm": 1.0, "clients_per_fit": together}
        module = make_module(
            tiny_supernet(norm=BatchNorm()),
            client=ClientSettings(sgd(0.1, momentum=0.9), **local),
            cohort=UniformCohort(count=clients),
        )
        with Waits() as seen:
            fit(module, tiny_data(), 1)
        return seen.count

    assert waits(1, 3) == waits(3, 6)
