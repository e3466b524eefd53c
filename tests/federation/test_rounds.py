"""A round against a hand-written one, and the cases in which federated training is something known."""

from __future__ import annotations

import copy

import pytest
import torch
from lightning import Trainer
from torch.nn import functional
from torch.utils.data import DataLoader

from lit_fednas.aggregation import MaxNet, OverlapAverage
from lit_fednas.assignment import RandomArchitectures, TrackingSandwich
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, CosineRate, FederatedCallback, UniformCohort
from lit_fednas.federation.client import ClientModule, ClientNetwork
from lit_fednas.objectives import CrossEntropy
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, PlainNetwork
from tests.support import assert_same, fit, linear_net, make_module, sgd, tiny_data, tiny_supernet, weights


def plain_client(network, data, client, round, batch_size=8, epochs=1, lr=0.1, momentum=0.0, seed=0, **drawn):
    """Local training written out by hand."""
    network.train()
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    for epoch in range(epochs):
        draws = generator(seed, "batches", round, client, epoch)
        for inputs, targets in data.clients.batches(client, batch_size, draws, **drawn):
            loss = functional.cross_entropy(network(inputs), targets)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for p, g, v in zip(network.parameters(), gradients, velocity, strict=True):
                    v.mul_(momentum).add_(g)
                    p.sub_(lr * v)


def plain_fedavg(supernet, data, rounds, cohorts, **local):
    """FedAvg written out by hand on a copy of the supernet's network."""
    server = copy.deepcopy(supernet.network)
    for round in range(rounds):
        total = sum(data.clients.sizes[client] for client in cohorts[round])
        average = [torch.zeros_like(p) for p in server.parameters()]
        for client in cohorts[round]:
            local_copy = copy.deepcopy(server)
            plain_client(local_copy, data, client, round, **local)
            for a, p in zip(average, local_copy.parameters(), strict=True):
                a.add_(p.detach(), alpha=data.clients.sizes[client] / total)
        with torch.no_grad():
            for p, a in zip(server.parameters(), average, strict=True):
                p.copy_(a)
    return server


class Cohorts(FederatedCallback):
    def __init__(self):
        self.seen = []

    def on_cohort_start(self, trainer, module, round):
        self.seen.append([task.client for task in round.tasks])


@pytest.mark.parametrize(("momentum", "balanced"), [(0.0, False), (0.9, True)])
def test_fedavg_equals_a_hand_written_loop(momentum, balanced):
    data = tiny_data(partitioner=Dirichlet(1.0, min_size=4))
    data.setup("fit")
    start = tiny_supernet(norm=GroupNorm(2))  # a norm by the batch would make much of the last bit of a sum
    cohorts = Cohorts()
    client = ClientSettings(sgd(0.1, momentum=momentum), batch_size=8, epochs=2, class_balanced=balanced)
    module = make_module(copy.deepcopy(start), client=client)
    fit(module, data, 3, callbacks=[cohorts])
    expected = plain_fedavg(start, data, 3, cohorts.seen, epochs=2, momentum=momentum, balanced=balanced)
    for p, q in zip(module.supernet.network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_one_client_with_all_data_equals_an_ordinary_trainer():
    data = tiny_data(num_clients=1)
    data.setup("fit")
    start = linear_net()
    module = make_module(copy.deepcopy(start), cohort=UniformCohort(count=1))
    fit(module, data, 2)

    class Ordinary(ClientModule):
        """The same steps in Lightning's own Trainer and automatic optimization."""

        def __init__(self, network):
            super().__init__(CrossEntropy(), ClientSettings(sgd(0.1), batch_size=8))
            self.begin(ClientNetwork(network))
            self.automatic_optimization = True

        def training_step(self, batch, batch_idx):
            return functional.cross_entropy(self.network(batch[0]), batch[1])

    ordinary = Ordinary(start.network)
    batches = [
        batch for round in range(2) for batch in data.clients.batches(0, 8, generator(0, "batches", round, 0, 0))
    ]
    Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(ordinary, DataLoader(batches, batch_size=None))
    for p, q in zip(module.supernet.network.parameters(), start.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_maxnet_round_equals_the_paper(monkeypatch):
    from tests.references.superfed import algorithm_2

    data = tiny_data()
    data.setup("fit")
    start = tiny_supernet()
    module = make_module(copy.deepcopy(start), TrackingSandwich(), MaxNet(beta=0.7), UniformCohort(count=4))
    updates = []
    original = MaxNet.add

    def keep(self, update):
        updates.append((update.task, {name: value.clone() for name, value in update.weights.items()}))
        original(self, update)

    monkeypatch.setattr(MaxNet, "add", keep)
    fit(module, data, 1)
    assert len(updates) == 4
    archs = [task.arch for task, _ in updates]
    expected = algorithm_2(
        start.shared_tensors(),
        archs,
        [update for _, update in updates],
        [task.num_examples for task, _ in updates],
        j=archs.index(start.space.largest),
        beta=0.7,
    )
    got = {name: tensor.double() for name, tensor in weights(module).items()}
    assert_same(got, expected, rtol=1e-5, atol=1e-6)


def test_equal_seeds_equal_runs_and_other_seeds_other_runs():
    """Also with dropout: its layers draw from the global generator, which is seeded by address for each fit."""
    drawn = []

    class Drawn(FederatedCallback):
        def on_cohort_start(self, trainer, module, round):
            drawn.append(tuple((task.client, task.arch) for task in round.tasks))

    def run(seed, supernet=None):
        before = torch.get_rng_state()
        module = make_module(supernet, RandomArchitectures(), seed=seed)
        trainer = fit(module, tiny_data(), callbacks=[Drawn()])
        assert torch.equal(torch.get_rng_state(), before)
        assert trainer.global_step == trainer.current_epoch == 3  # the server's steps
        return weights(module)

    def dropout():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
        return PlainNetwork(layers, (1, 8, 8), 4)

    torch.manual_seed(1)  # the global generator has no part in a run
    first, dropped = run(3), run(3, dropout())
    assert len(set(drawn[:3])) == 3  # every round draws anew
    torch.manual_seed(2)
    assert_same(first, run(3))
    assert drawn[:3] == drawn[6:9]
    network = dropout()
    torch.manual_seed(2)
    assert_same(dropped, run(3, network))
    other = run(4)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_clients_training_does_not_depend_on_the_others():
    """Each client's result belongs to (seed, round, client): a cohort of one equals its place in a larger one."""

    class Losses(FederatedCallback):
        def __init__(self):
            self.by_client = {}

        def on_client_end(self, trainer, module, result, update):
            self.by_client[result.task.client] = result.loss

    def losses(count):
        seen = Losses()
        fit(make_module(cohort=UniformCohort(count=count)), tiny_data(), 1, callbacks=[seen])
        return seen.by_client

    everyone = losses(6)
    for count in (1, 2, 3):
        some = losses(count)
        assert all(everyone[client] == loss for client, loss in some.items())


def test_round_schedule_scales_the_learning_rate():
    data = tiny_data()
    start = linear_net()
    # factor 0 in the last round: the weights stay
    client = ClientSettings(sgd(0.1), batch_size=8, lr_schedule=CosineRate(final=0.0))
    module = make_module(copy.deepcopy(start), client=client)
    snapshots = []

    class Snapshots(FederatedCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            snapshots.append(weights(pl_module))

    fit(module, data, 3, callbacks=[Snapshots()])
    assert not torch.equal(snapshots[0]["network.1.weight"], snapshots[1]["network.1.weight"])
    assert_same(snapshots[1], snapshots[2], rtol=0, atol=1e-7)


def test_clipping_bounds_a_step():
    start = linear_net()
    client = ClientSettings(sgd(1.0), batch_size=8, steps=1, clip_norm=0.01)
    module = make_module(copy.deepcopy(start), client=client, cohort=UniformCohort(count=1))
    fit(module, tiny_data(), 1)
    moved = torch.cat(
        [
            (p - q).detach().flatten()
            for p, q in zip(module.supernet.network.parameters(), start.network.parameters(), strict=True)
        ]
    )
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_local_scheduler_steps_after_every_batch():
    from torch.optim.lr_scheduler import LambdaLR

    start = linear_net()
    # the learning rate is 1 in the first step and 0 afterwards: as many steps as you like equal one
    once = make_module(copy.deepcopy(start), client=ClientSettings(sgd(0.1), batch_size=8, steps=1))
    fit(once, tiny_data(), 1)
    client = ClientSettings(
        sgd(0.1),
        batch_size=8,
        steps=3,
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: float(step < 1)),
    )
    many = make_module(copy.deepcopy(start), client=client)
    fit(many, tiny_data(), 1)
    assert_same(weights(once), weights(many))


def test_server_momentum_is_that_of_torch():
    """The pseudo-gradient goes through any torch optimizer: two rounds of FedAvgM by hand."""
    start = linear_net()
    aggregates = []
    original = OverlapAverage.finish

    class Kept(OverlapAverage):
        def finish(self, rejected=()):
            result = original(self, rejected)
            aggregates.append({name: value.clone() for name, value in result.items()})
            return result

    module = make_module(copy.deepcopy(start), aggregation=Kept(), server_optimizer=sgd(0.5, momentum=0.9))
    fit(module, tiny_data(), 2)
    present = {name: tensor.detach().clone() for name, tensor in start.shared_tensors().items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in present.items()}
    for aggregate in aggregates:
        for name in present:
            velocity[name] = 0.9 * velocity[name] + (present[name] - aggregate[name])
            present[name] = present[name] - 0.5 * velocity[name]
    assert_same(weights(module), present, rtol=1e-5, atol=1e-6)


def test_training_learns():
    module = make_module(assignment=TrackingSandwich(), cohort=UniformCohort(count=4))
    trainer = fit(module, tiny_data(), 8)
    assert float(trainer.callback_metrics["val/largest/accuracy"]) > 0.9


def test_precision_and_channels_last_train_alike():
    start = tiny_supernet()
    results = []
    for settings in ({}, {"channels_last": True}, {"precision": "bf16-mixed"}):
        module = make_module(copy.deepcopy(start), client=ClientSettings(sgd(0.05), batch_size=8, **settings))
        fit(module, tiny_data(), 1)
        results.append(weights(module))
    assert_same(results[0], results[1], rtol=1e-3, atol=1e-4)
    assert_same(results[0], results[2], rtol=0.2, atol=0.05)
    assert any(not torch.equal(results[0][name], results[2][name]) for name in results[0])


def test_memory_is_flat_over_rounds():
    """No tensor survives a round: as many live after the fifth as after the third."""
    import gc

    counts = []

    class Count(FederatedCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch in (2, 4):
                gc.collect()
                counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))

    fit(make_module(cohort=UniformCohort(count=5)), tiny_data(), 5, callbacks=[Count()])
    assert counts[1] <= counts[0]


@pytest.mark.parametrize(
    ("settings", "steps"),
    # 20 examples per client: 3 steps an epoch of batches of 8, so 7 steps are two epochs and one batch
    [
        ({"steps": 7}, (7, 20 + 20 + 8)),
        ({"epochs": 2, "drop_last": True}, (4, 32)),
        ({"epochs": 1, "drop_last": True, "batch_size": 32}, (1, 20)),
    ],
)
def test_steps_and_examples_of_a_fit(settings, steps):
    results = []

    class Seen(FederatedCallback):
        def on_client_end(self, trainer, module, result, update):
            results.append((result.num_steps, result.num_seen))

    client = ClientSettings(sgd(0.1), **{"batch_size": 8, **settings})
    fit(make_module(linear_net(), client=client), tiny_data(), 1, callbacks=[Seen()])
    assert results == [steps] * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 3, "epochs": 3},
        {"batch_size": 8, "epochs": 2, "drop_last": True},
        {"batch_size": 50, "epochs": 2, "drop_last": True},
        {"batch_size": 3, "steps": 7},
        {"batch_size": 8, "steps": 1},
    ],
)
def test_the_examples_of_a_fit_are_known_before(settings):
    seen = {}

    class Seen(FederatedCallback):
        def on_client_end(self, trainer, module, result, update):
            seen[result.task.num_examples] = result.num_seen

    client = ClientSettings(sgd(0.0), **settings)
    data = tiny_data(partitioner=Dirichlet(1.0, min_size=6))
    fit(make_module(linear_net(), client=client, cohort=UniformCohort(count=6)), data, 1, callbacks=[Seen()])
    assert len(seen) > 3
    assert seen == {size: client.examples(size) for size in seen}
