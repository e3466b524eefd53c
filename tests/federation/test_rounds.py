"""Rounds against hand-written ones, and special cases that equal ordinary training."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import RandomArchitectures
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, MilestoneRate, UniformCohort
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, PlainNetwork
from tests.federation.methods import OwnSteps
from tests.federation.runs import Results
from tests.support import Noted, assert_same, fit, linear_net, make_module, sgd, tiny_data, tiny_supernet, weights


def plain_client(network, data, client, round):
    """Two epochs of local training written out by hand."""
    network.train()
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    for epoch in range(2):
        draws = generator(0, "batches", round, client, epoch)
        for inputs, targets in data.clients.batches(client, 8, draws):
            loss = functional.cross_entropy(network(inputs), targets)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for p, g, v in zip(network.parameters(), gradients, velocity, strict=True):
                    v.mul_(0.9).add_(g)
                    p.sub_(0.1 * v)


def test_fedavg_equals_a_hand_written_loop():
    """The loop trains a copy of the network, with momentum."""
    data = tiny_data(partitioner=Dirichlet(1.0, min_size=4))
    cohorts = Noted("on_cohort_start", lambda trainer, module, round: [task.client for task in round.tasks])
    start = tiny_supernet(norm=GroupNorm(2))  # batch norm would amplify the last bit of a sum
    client = ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, epochs=2)
    module = make_module(copy.deepcopy(start), client=client)
    fit(module, data, 2, callbacks=[cohorts])
    server, sizes = start.network, data.clients.sizes
    for round, cohort in enumerate(cohorts.all):
        average = [torch.zeros_like(p) for p in server.parameters()]
        for client in cohort:
            local = copy.deepcopy(server)
            plain_client(local, data, client, round)
            for a, p in zip(average, local.parameters(), strict=True):
                a.add_(p.detach(), alpha=sizes[client] / sum(sizes[other] for other in cohort))
        for p, a in zip(server.parameters(), average, strict=True):
            p.data.copy_(a)
    for p, q in zip(module.supernet.network.parameters(), server.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_one_client_with_all_data_equals_an_ordinary_trainer():
    data, start = tiny_data(num_clients=1), linear_net()
    module = make_module(copy.deepcopy(start), cohort=UniformCohort(count=1))
    fit(module, data, 2)

    class Ordinary(LightningModule):
        def __init__(self):
            super().__init__()
            self.network = start.network

        def training_step(self, batch, batch_idx):
            return functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = [
        batch for round in range(2) for batch in data.clients.batches(0, 8, generator(0, "batches", round, 0, 0))
    ]
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Ordinary(), DataLoader(batches, batch_size=None))
    for p, q in zip(module.supernet.network.parameters(), start.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_equal_seeds_equal_runs_and_other_seeds_other_runs():
    """Dropout draws from the global generator, which each fit seeds by round and client."""
    cohorts = Noted("on_cohort_start", lambda trainer, module, round: tuple(task.client for task in round.tasks))

    def run(seed):
        state = torch.get_rng_state()
        module = make_module(copy.deepcopy(dropout), seed=seed)
        trainer = fit(module, tiny_data(), callbacks=[cohorts])
        assert torch.equal(torch.get_rng_state(), state)
        assert trainer.global_step == trainer.current_epoch == 3  # the server's steps
        return weights(module)

    dropout = PlainNetwork(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4)), (1, 8, 8), 4)
    torch.manual_seed(1)  # the global generator has no part in a run
    first = run(3)
    assert len(set(cohorts.all)) == 3  # every round has another cohort
    torch.manual_seed(2)
    assert_same(first, run(3))
    assert cohorts.all[:3] == cohorts.all[3:]
    other = run(4)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_rejected_architecture_keeps_its_weights():
    """All other elements are averaged as without the rejection."""

    class Turns(RandomArchitectures):
        def plan(self, round):
            ends = round.space.smallest, round.space.largest
            return [round.task(client, ends[client % 2]) for client in round.cohort]

    rejecting = Noted("on_results", lambda trainer, module, round: round.reject(module.supernet.space.smallest))
    start, supernets = tiny_supernet(), []
    for callbacks in ([], [rejecting]):
        module = make_module(copy.deepcopy(start), Turns(), cohort=UniformCohort(count=4))
        fit(module, tiny_data(), 1, callbacks=callbacks)
        supernets.append(module.supernet)
    unrestricted, restricted = (
        {name: tensor.detach() for name, tensor in net.shared_tensors().items()} for net in supernets
    )
    for region in start.regions(start.space.smallest).values():
        index = ... if region.index is None else region.index
        assert torch.equal(restricted[region.name][index], region.of(start.shared_tensors()[region.name])), region.name
        unrestricted[region.name][index] = restricted[region.name][index]
    assert_same(restricted, unrestricted)
    assert any(not torch.equal(restricted[name], old) for name, old in start.shared_tensors().items())


def test_server_momentum_is_that_of_torch():
    """Any torch optimizer steps along the pseudo-gradient: two rounds of FedAvgM by hand."""
    start, aggregates = linear_net(), []

    class Kept(OverlapAverage):
        def finish(self):
            result = super().finish()
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


@pytest.mark.parametrize("together", [1, 2])
def test_memory_is_flat_over_rounds(together):
    """No tensor survives a round: the numbers of tensors after rounds two and four are equal."""

    def live(*arguments):
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    counts = Noted("on_train_epoch_end", live)
    client = ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, clients_per_fit=together)
    fit(make_module(linear_net(), client=client), tiny_data(), 4, callbacks=[counts])
    assert counts.all[3] <= counts.all[1]


def change_by_training(client: ClientSettings, rounds: int = 1, **settings) -> torch.Tensor:
    """Returns the change of a linear network's weights after some rounds."""
    start = linear_net()
    module = make_module(copy.deepcopy(start), client=client, **settings)
    fit(module, tiny_data(), rounds)
    return torch.cat([(weights(module)[name] - old.detach()).flatten() for name, old in start.shared_tensors().items()])


def test_clipping_bounds_a_step():
    client = ClientSettings(sgd(1.0), batch_size=8, steps=1, clip_norm=0.01)
    assert float(change_by_training(client, cohort=UniformCohort(count=1)).norm()) == pytest.approx(0.01, rel=1e-3)


def test_round_schedule_scales_the_learning_rate():
    """With a factor of 0 in the last of three rounds, the weights stay as after two of three."""
    client = ClientSettings(sgd(0.1), batch_size=8, lr_schedule=MilestoneRate([0.6], 0.0))
    unscheduled = ClientSettings(sgd(0.1), batch_size=8)
    torch.testing.assert_close(change_by_training(client, 3), change_by_training(unscheduled, 2), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "of_twenty"),
    [
        ({"batch_size": 8, "steps": 7}, 20 + 20 + 8),  # three steps are an epoch
        ({"batch_size": 8, "epochs": 2, "drop_last": True}, 32),
        ({"batch_size": 50, "epochs": 2, "drop_last": True}, 40),
    ],
    ids=str,
)
def test_the_number_of_examples_of_a_fit_is_predicted(settings, of_twenty):
    results, client = Results(), ClientSettings(sgd(0.0), **settings)
    data = tiny_data(partitioner=Dirichlet(1.0, min_size=6))
    trainer = fit(make_module(linear_net(), client=client, cohort=UniformCohort(count=6)), data, 1, callbacks=[results])
    num_seen = {result.task.num_examples: result.num_seen for result in results.all}
    assert len(num_seen) > 3
    assert num_seen == {size: client.examples(size) for size in num_seen}
    assert client.examples(20) == of_twenty
    assert "steps" not in settings or {result.num_steps for result in results.all} == {settings["steps"]}
    loss = sum(result.loss * result.num_seen for result in results.all) / sum(result.num_seen for result in results.all)
    assert float(trainer.callback_metrics["clients/loss"]) == pytest.approx(loss)


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"steps": 4}, {"clients_per_fit": 3}], ids=str)
def test_a_task_may_have_its_own_number_of_steps(settings):
    results, client = Results(), ClientSettings(sgd(0.1), batch_size=8, **settings)
    cohort = UniformCohort(count=6)
    module = make_module(linear_net(), OwnSteps("largest"), client=client, cohort=cohort)
    fit(module, tiny_data(partitioner=Dirichlet(1.0, min_size=6)), 1, callbacks=[results])
    assert [result.num_steps for result in results.all] == [1 + result.task.client % 3 for result in results.all]
    for result in results.all:
        assert result.num_seen == client.examples(result.task.num_examples, result.num_steps)


def test_an_assignment_receives_the_number_of_rounds():
    lengths = []

    class Recorder(RandomArchitectures):
        def plan(self, round):
            lengths.append((round.number, round.max_rounds))
            return super().plan(round)

    fit(make_module(assignment=Recorder()), tiny_data(), 2)
    assert lengths == [(0, 2), (1, 2)]
