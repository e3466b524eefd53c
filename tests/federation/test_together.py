"""Clients that are trained together, against the same clients trained one by one."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lit_fednas.aggregation import Aggregation
from lit_fednas.assignment import TrackingSandwich
from lit_fednas.data import IID, ArraySource, Dirichlet, Examples, FederatedDataModule, NextToken
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation import ClientSettings, CosineRate, FaultPolicy, FederatedCallback, UniformCohort
from lit_fednas.federation.stacked import StackedModule
from lit_fednas.objectives import CrossEntropy, Objective
from lit_fednas.supernets import (
    BatchNorm,
    ElasticMLP,
    ElasticResNet,
    ElasticTCN,
    ElasticTransformer,
    GroupNorm,
    PlainNetwork,
    SmallCNN,
)
from tests.support import (
    assert_same,
    fit,
    linear_net,
    make_module,
    one_of_many,
    sgd,
    tiny_data,
    tiny_examples,
    weights,
)

CLIENTS = 7


class Results(FederatedCallback):
    def __init__(self):
        self.all = []

    def on_client_end(self, trainer, module, result, update):
        self.all.append(result)

    def by_client(self):
        return {(result.task.round, result.task.client): result for result in self.all}


class MeanInDoubles(Aggregation):
    """Every element's mean over the clients that hold it; the package's own aggregations sum in float32."""

    def start(self, tasks, values=None, by_architecture=False):
        shared = self._supernet.shared_tensors()
        self.totals = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in shared.items()}
        self.counts = copy.deepcopy(self.totals)

    def add(self, update):
        for name, region in self._supernet.regions(update.task.arch).items():
            region.add_to(self.totals[region.name], update.weights[name].double())
            region.add_to(self.counts[region.name], 1.0)

    def sums(self):
        return [*self.totals.values(), *self.counts.values()]

    def finish(self, rejected=()):
        assert not rejected  # as no callback rejects any
        shared = self._supernet.shared_tensors()
        means = {name: total / self.counts[name] for name, total in self.totals.items()}
        return {name: torch.where(self.counts[name] > 0, mean, shared[name]) for name, mean in means.items()}


def in_doubles(images):
    """Inputs as doubles, so that float sums in another order differ by next to nothing."""
    return images.double() / 255


def unequal_data(num_clients=CLIENTS, normalization=in_doubles, **settings):
    splits = tiny_examples(), tiny_examples(40, 1), tiny_examples(40, 2)
    settings = {"partitioner": Dirichlet(1.0, min_size=4), **settings}
    return FederatedDataModule(ArraySource(*splits, normalization=normalization), num_clients=num_clients, **settings)


def equal_data(num_clients=6):
    return unequal_data(num_clients, partitioner=IID())


def made(make):
    """Makes something with random weights, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def plain(make):
    return PlainNetwork(made(make), (1, 8, 8), 4)


def elastic(norm):
    settings = {"stem_width": 4, "stage_widths": [8, 16], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}
    return made(lambda: ElasticResNet((1, 8, 8), 4, norm=norm, **settings))


def small_cnn():
    return made(lambda: SmallCNN((1, 8, 8), 4))


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run(together, supernet=None, data=None, rounds=2, local=None, dtype=torch.float64, **settings):
    """Trains a few rounds; returns the results of all clients and the weights."""
    local = {"optimizer": sgd(0.1), "batch_size": 8, **(local or {})}
    results = Results()
    supernet = copy.deepcopy(supernet) if supernet is not None else elastic(GroupNorm(2))
    module = make_module(
        supernet.to(dtype),
        aggregation=MeanInDoubles(),
        client=ClientSettings(**local, clients_per_fit=together),
        **{"cohort": UniformCohort(count=CLIENTS), **settings},
    )
    with default_dtype(dtype):
        fit(module, data or unequal_data(), rounds, callbacks=[results])
    return results.by_client(), weights(module)


def assert_alike(one, other, atol=1e-10, rtol=1e-8):
    """The same of each client, and the same weights, up to the order of float sums."""
    (results, tensors), (others, other_tensors) = one, other
    assert results.keys() == others.keys()
    for key, result in results.items():
        counts = ("task", "status", "num_steps", "num_seen")
        assert [getattr(result, name) for name in counts] == [getattr(others[key], name) for name in counts]
        assert result.loss == pytest.approx(others[key].loss, rel=rtol, nan_ok=True)
    assert_same(tensors, other_tensors, rtol=rtol, atol=atol)


@pytest.fixture
def stacked_fits(monkeypatch):
    """How many clients each fit of several has had, of those that came to their end."""
    seen = []
    end = StackedModule.on_train_end

    def counted(self):
        end(self)
        seen.append(len(self.clients))

    monkeypatch.setattr(StackedModule, "on_train_end", counted)
    return seen


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)


def adam(kind, **settings):
    return lambda params: kind(params, lr=0.003, **settings)


#: Each setting of a fit once, several together.
LOCAL = {
    "momentum": {"epochs": 2, "optimizer": sgd(0.1, momentum=0.9, weight_decay=0.01), "drop_last": True},
    "nesterov": {"steps": 7, "optimizer": sgd(0.05, momentum=0.9, nesterov=True), "lr_schedule": CosineRate(0.1)},
    "adam": {"epochs": 2, "optimizer": adam(torch.optim.Adam, weight_decay=0.01), "class_balanced": True},
    "adamw": {"epochs": 2, "optimizer": adam(torch.optim.AdamW), "scheduler": exponential},
    "clip_norm": {"epochs": 2, "optimizer": sgd(0.5), "clip_norm": 0.2},
}


@pytest.mark.parametrize("name", one_of_many(LOCAL, "momentum", "clip_norm"))
def test_equals_one_by_one(name, stacked_fits):
    local = LOCAL[name]
    alone = run(1, local=local)
    assert stacked_fits == []
    assert len({result.num_seen for result in alone[0].values()}) > 2 - ("steps" in local)  # some end early
    assert_alike(run(4, local=local), alone)
    assert stacked_fits == [4, 3] * 2


def tokens(seed, count=40):
    """Random texts of eight tokens, with the next ones as targets."""
    rows = torch.randint(5, (count, 9), generator=torch.Generator().manual_seed(seed))
    return Examples(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


#: What torch says of attention under vmap on a CPU: it goes through the clients one by one.
SLOW_ATTENTION = pytest.mark.filterwarnings("ignore:There is a performance drop")


OTHERS = {
    "tcn": (True, lambda: ElasticTCN((8,), 5, channels=10, embedding=4, tied=False)),
    "transformer": (True, lambda: ElasticTransformer((8,), 5, dim=8, dropout=0.2)),
    "patches": (False, lambda: ElasticTransformer((1, 8, 8), 4, dim=8)),
    "mlp": (False, lambda: ElasticMLP((1, 8, 8), 4, dim=8)),
}


@SLOW_ATTENTION
@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_equal_one_by_one(name, stacked_fits):
    of_tokens, make = OTHERS[name]
    source = ArraySource(tokens(0, 100), tokens(1), tokens(2), task=NextToken(5))
    data = FederatedDataModule(source, num_clients=CLIENTS, partitioner=IID()) if of_tokens else None
    alone, together = (run(count, made(make), data=data, rounds=1) for count in (1, 4))
    assert stacked_fits == [4, 3]
    assert_alike(together, alone)


NORMS = {
    "group": GroupNorm(2),
    "batch": BatchNorm(affine=False, running_statistics=False),
    "affine": BatchNorm(running_statistics=False),
    "running": BatchNorm(),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms(norm, stacked_fits):
    local = {"epochs": 2, "batch_size": 9, "optimizer": sgd(0.05, momentum=0.9)}
    alone, together = (run(count, elastic(norm), local=local) for count in (1, 4))
    assert_alike(together, alone)
    assert stacked_fits
    if norm is NORMS["running"]:
        name = "network.norm.running_mean"
        assert not torch.equal(together[1][name], torch.zeros_like(together[1][name]))
        assert together[1]["network.norm.num_batches_tracked"] > 0


def test_a_lone_example_is_passed_over_by_batch_norm(stacked_fits):
    # 120 examples for 6 clients: 20 each; batches of 19 leave one alone, after which the next epoch follows
    def lone(together):
        data = equal_data()
        cohort = UniformCohort(count=6)
        return run(together, elastic(BatchNorm()), data, local={"batch_size": 19, "epochs": 3}, cohort=cohort)

    together = lone(6)
    assert {(r.num_steps, r.num_seen) for r in together[0].values()} == {(3, 57)}
    assert_alike(together, lone(1))
    assert stacked_fits == [6, 6]


def test_groups_are_of_one_architecture_and_similar_size(monkeypatch):
    # a space of 16 members, so that some of 12 clients share one
    data = {"data": unequal_data(12), "cohort": UniformCohort(count=12), "rounds": 2}
    alone = run(1, elastic(NORMS["batch"]), assignment=TrackingSandwich(), **data)
    groups, start = [], StackedModule.on_train_start
    monkeypatch.setattr(
        StackedModule,
        "on_train_start",
        lambda self: groups.append([client.task for client in self.clients]) or start(self),
    )
    assert_alike(run(4, elastic(NORMS["batch"]), assignment=TrackingSandwich(), **data), alone)
    assert 1 < max(map(len, groups)) <= 4
    for group in groups:
        assert len({task.arch for task in group}) == 1
        sizes = [task.num_examples for task in group]
        assert sizes == sorted(sizes, reverse=True)


def test_dropout_draws_the_same_masks(stacked_fits):
    net = small_cnn()
    local = {"epochs": 2, "optimizer": sgd(0.05)}
    alone, together = (run(count, net, local=local) for count in (1, 4))
    assert_alike(together, alone)
    assert stacked_fits
    without = copy.deepcopy(net)
    for module in without.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    other = run(4, without, local=local)
    name = next(iter(together[1]))
    assert not torch.allclose(other[1][name], together[1][name], atol=1e-4)


def test_dropout_in_place_and_of_everything():
    def make():
        layers = nn.Dropout(0.3, inplace=True), nn.Linear(64, 8), nn.Dropout(1.0), nn.Linear(8, 4)
        return nn.Sequential(nn.Flatten(), *layers)

    assert_alike(run(4, plain(make)), run(1, plain(make)))


def test_memory_is_flat_over_rounds():
    counts = []

    class Count(FederatedCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch in (2, 4):
                gc.collect()
                counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))

    client = ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, clients_per_fit=4)
    module = make_module(elastic(BatchNorm()), client=client, cohort=UniformCohort(count=CLIENTS))
    fit(module, unequal_data(normalization=None), 5, callbacks=[Count()])
    assert counts[1] <= counts[0]


def test_seconds_are_shares_of_the_fit():
    results, _ = run(4, rounds=1)
    by_group = {}
    for result in results.values():
        by_group.setdefault(result.seconds, []).append(result)
    assert sorted(len(group) for group in by_group.values()) == [3, 4]


def test_global_generator_is_not_moved():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(4, small_cnn())
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_without_gradient_stay(stacked_fits):
    """One is frozen, the other is not used: weight decay touches neither."""

    class Unused(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))
            self.unused = nn.Parameter(torch.ones(3))
            self[1].bias.requires_grad_(False)

    local = {"optimizer": sgd(0.1, weight_decay=0.1)}
    alone, together = (run(count, plain(Unused), local=local) for count in (1, 4))
    assert_alike(together, alone)
    assert torch.equal(together[1]["network.unused"], torch.ones(3, dtype=torch.float64))
    assert stacked_fits


def test_bfloat16_is_as_near_as_bfloat16_is(stacked_fits):
    local = {"optimizer": sgd(0.02)}
    exact, alone, together = (
        run(
            together,
            data=unequal_data(normalization=None),
            local={**local, "precision": precision},
            dtype=torch.float32,
            rounds=1,
        )
        for together, precision in ((1, "32-true"), (1, "bf16-mixed"), (4, "bf16-mixed"))
    )
    assert_alike(together, alone, rtol=0.02, atol=5e-3)
    assert not torch.equal(together[1]["network.stem.weight"], exact[1]["network.stem.weight"])
    assert stacked_fits == [4, 3]


def test_a_data_loader_with_workers_serves_several_clients(stacked_fits):
    """It gives one client's pass at a time, while the clients' passes are under way at once."""

    def loaded(together):
        return run(together, data=unequal_data(in_memory=False, num_workers=1), rounds=1, local={"steps": 7})

    assert_alike(loaded(4), loaded(1))
    assert stacked_fits == [4, 3]


# ---- faults ---------------------------------------------------------------------------------------------


def test_only_the_client_with_a_bad_label_is_lost(caplog):
    def faulty():
        data = equal_data()
        data.setup("fit")
        row = int(data.clients.rows(2)[3])
        data.clients.reader.dataset.targets[row] = 9
        return data

    cohort = UniformCohort(count=6)
    alone = run(1, data=faulty(), cohort=cohort, rounds=1)
    with caplog.at_level(logging.WARNING):
        together = run(6, data=faulty(), cohort=cohort, rounds=1)
    assert_alike(together, alone)
    status = {client: result.status for (_, client), result in together[0].items()}
    assert status == {0: "ok", 1: "ok", 2: "error", 3: "ok", 4: "ok", 5: "ok"}
    (line,) = [record.getMessage() for record in caplog.records if "in one fit" in record.getMessage()]
    assert line.startswith("round 0, clients ")
    assert sorted(int(part) for part in line.split(":")[0].removeprefix("round 0, clients ").split(",")) == list(
        range(6)
    )
    assert "out of bounds" in line
    assert "one by one" in line
    with pytest.raises(ClientError, match="round 0, client 2: IndexError"):
        run(6, data=faulty(), cohort=cohort, rounds=1, faults=FaultPolicy(on_client_error="raise"))


def test_weights_that_are_not_finite_are_one_clients_own(stacked_fits):
    def wild():
        data = equal_data()
        data.setup("fit")
        examples = data.clients.reader.dataset
        inputs = examples.inputs.double()
        inputs[data.clients.rows(3)[0]] = math.nan
        data.clients.reader.dataset = dataclasses.replace(examples, inputs=inputs)
        return data

    cohort = UniformCohort(count=6)
    local = {"epochs": 2, "clip_norm": 0.5}
    together = run(6, linear_net(), wild(), 1, local, cohort=cohort)
    assert stacked_fits == [6]
    assert {client for (_, client), result in together[0].items() if result.status == "non-finite"} == {3}
    assert_alike(together, run(1, linear_net(), wild(), 1, local, cohort=cohort))
    with pytest.raises(ClientError, match="round 0, client 3: the trained weights are not finite"):
        run(6, linear_net(), wild(), 1, cohort=cohort, faults=FaultPolicy(on_client_error="raise"))


def test_a_client_that_cannot_take_a_step_is_empty(stacked_fits):
    # batch norm, and clients with one example beside clients with more
    data = {"data": unequal_data(40, partitioner=Dirichlet(2.0, min_size=1)), "cohort": UniformCohort(count=40)}
    alone, together = (run(count, elastic(BatchNorm()), local={"steps": 3}, rounds=1, **data) for count in (1, 40))
    assert_alike(together, alone)
    assert {result.status for result in together[0].values()} == {"ok", "empty"}
    assert stacked_fits == [40]


def test_a_stop_is_no_fault(caplog):
    from lit_fednas.federation.interrupts import Interrupted

    class Stop(FederatedCallback):
        def on_train_start(self, trainer, module):
            calls = iter(range(2))

            def check():
                if next(calls, None) is None:
                    raise Interrupted(2)

            trainer.fit_loop._runner.check = check

    module = make_module(client=ClientSettings(sgd(0.1), batch_size=8, clients_per_fit=4))
    with pytest.raises(Interrupted):
        fit(module, unequal_data(normalization=None), 1, callbacks=[Stop()])
    assert "one by one" not in caplog.text


# ---- what cannot be ---------------------------------------------------------------------------------------


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Peek(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > -1e9 else -x


class Stateful(CrossEntropy):
    """Inherits from an objective that may be stacked, and may not itself."""

    def loss(self, network, inputs, targets):
        self.calls = getattr(self, "calls", 0) + 1
        return super().loss(network, inputs, targets)


REFUSED = {
    "noise": (
        {"supernet": plain(lambda: nn.Sequential(nn.Flatten(), Noise(), nn.Linear(64, 4)))},
        "random numbers by randn_like",
    ),
    "dropout2d": (
        {"supernet": plain(lambda: nn.Sequential(nn.Dropout2d(), nn.Flatten(), nn.Linear(64, 4)))},
        "numbers by dropout2d",
    ),
    "peek": (
        {"supernet": plain(lambda: nn.Sequential(nn.Flatten(), Peek(), nn.Linear(64, 4)))},
        "cannot be stacked",
    ),
    "objective": ({"objective": Stateful()}, "objective Stateful, which is not stackable"),
    "time_limit": ({"faults": FaultPolicy(time_limit=5)}, "faults.time_limit, 5 s; set it to null"),
    "optimizer": ({"local": {"optimizer": lambda params: torch.optim.LBFGS(params)}}, "optimizer is LBFGS"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stacked_is_told_before_any_training(settings, message, stacked_fits):
    with pytest.raises(ConfigError, match=message) as caught:
        run(4, **settings)
    assert str(caught.value).startswith("client.clients_per_fit: 4")
    assert "set client.clients_per_fit to 1" in str(caught.value)
    assert stacked_fits == []
    if "optimizer" not in message:
        run(1, rounds=1, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_fit": 0}, "client.clients_per_fit: 0 must be at least 1"),
        (
            {"clients_per_fit": 2, "precision": "16-mixed"},
            "client.precision: 16-mixed .* or client.clients_per_fit to 1",
        ),
        (
            {"clients_per_fit": 2, "channels_last": True},
            "client.channels_last: true .* or client.clients_per_fit to 1",
        ),
    ],
)
def test_settings_that_exclude_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        ClientSettings(**settings)


def test_an_objective_is_stackable_only_if_it_says_so():
    class Sure(CrossEntropy):
        stackable = True

        def loss(self, network, inputs, targets):
            return 2 * super().loss(network, inputs, targets)

    class Renamed(CrossEntropy):
        """Changes nothing of the loss."""

    assert not Objective.stackable
    assert CrossEntropy.stackable
    assert Renamed.stackable
    assert Sure.stackable
    assert not Stateful.stackable


# ---- the device is not waited for --------------------------------------------------------------------------


class Looks(TorchDispatchMode):
    """Counts what makes the processor wait for a device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("together", [1, 3])
def test_looks_at_the_device_grow_neither_with_steps_nor_with_clients(together):
    def looks(epochs, clients):
        local = {"batch_size": 8, "epochs": epochs, "clip_norm": 1.0, "clients_per_fit": together}
        module = make_module(
            elastic(BatchNorm()),
            client=ClientSettings(sgd(0.1, momentum=0.9), **local),
            cohort=UniformCohort(count=clients),
        )
        with Looks() as seen:
            fit(module, tiny_data(), 1)
        return seen.count

    assert looks(1, 3) == looks(6, 3) == looks(1, 6)
