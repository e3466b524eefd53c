"""Tests of a client's network on the client's own validation split."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.callbacks import RunRecorder
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, FederatedCallback, UniformCohort
from lit_fednas.rng import generator
from lit_fednas.supernets import PlainNetwork
from tests.support import assert_same, fit, make_module, seeded, sgd, tiny_data, weights


def layers(statistics=True, alone=True) -> nn.Module:
    """Layers with other outputs in training: batch norm, and dropout if clients train alone."""
    norm = nn.BatchNorm1d(8, track_running_stats=statistics)
    dropout = nn.Dropout(0.5) if alone else nn.Identity()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, dropout, nn.Linear(8, 4))


def net(statistics=True, alone=True) -> PlainNetwork:
    return seeded(lambda: PlainNetwork(layers(statistics, alone), (1, 8, 8), 4), seed=1)


def clients_data(**settings):
    return tiny_data(partitioner=Dirichlet(alpha=2.0, min_size=8), **{"client_val": 0.3, **settings})


class Recorder(FederatedCallback):
    """Records the weights that clients received and sent, and the metrics of their tests."""

    def __init__(self) -> None:
        self.sent: dict = {}
        self.updates: dict = {}
        self.results: list = []

    def on_cohort_start(self, trainer, module, round):
        self.sent = weights(module)

    def on_client_end(self, trainer, module, result, update):
        self.updates[update.task.client] = {name: tensor.clone() for name, tensor in update.weights.items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.results = batch.results
        self.metric = trainer.callback_metrics.get("clients/accuracy")


def local_test_run(validate: str | None, source=None, statistics=True, **settings) -> tuple[Recorder, object, object]:
    recorder = Recorder()
    source = source or clients_data()
    client = ClientSettings(sgd(0.05), batch_size=8, epochs=1, validate=validate, **settings)
    module = make_module(net(statistics, client.clients_per_fit == 1), client=client, cohort=UniformCohort(count=4))
    fit(module, source, 1, callbacks=[recorder, RunRecorder()])
    return recorder, module, source


def by_hand(tensors: dict, source, client: int) -> tuple[float, int]:
    """Returns the accuracy and the number of examples, from batches of three."""
    network = layers()
    network.load_state_dict(tensors)
    batches = source.clients.batches(client, 3, generator(0, "x"), split="val", shuffle=False, augment=False)
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    right = (network.eval()(inputs).argmax(1) == targets).sum()
    return float(right) / len(targets), len(targets)


@pytest.mark.parametrize(("validate", "together"), [("trained", 1), ("received", 3)])
def test_accuracy_on_the_clients_own_validation_split(validate: str, together: int) -> None:
    recorder, _, source = local_test_run(validate, clients_per_fit=together)
    received = {name.removeprefix("network."): tensor for name, tensor in recorder.sent.items()}
    right = total = 0.0
    for result in recorder.results:
        client = result.task.client
        tensors = recorder.updates[client] if validate == "trained" else received
        accuracy, count = by_hand(tensors, source, client)
        assert (result.tested["accuracy"], result.num_tested) == (pytest.approx(accuracy), count)
        assert count == source.clients.size(client, "val") > 0
        right, total = right + accuracy * count, total + count
    assert float(recorder.metric) == pytest.approx(right / total)
    assert len({result.tested["accuracy"] for result in recorder.results}) > 1


def test_norms_without_statistics_use_the_clients_own_training_data() -> None:
    recorder, _, source = local_test_run("trained", statistics=False)
    for result in recorder.results:
        client = result.task.client
        draws = generator(0, "local-statistics", client)
        inputs = [x for x, _ in source.clients.batches(client, 8, draws, augment=False) if len(x) > 1]
        network = layers(statistics=False)
        network.load_state_dict(recorder.updates[client])
        hidden = [network[1](network[0](x)) for x in inputs]
        mean, var = (torch.stack([statistic(x, 0) for x in hidden]).mean(0) for statistic in (torch.mean, torch.var))
        examples = source.clients.batches(client, 3, draws, split="val", shuffle=False, augment=False)
        x, targets = (torch.cat(parts) for parts in zip(*examples, strict=True))
        normalised = (network[1](network[0](x)) - mean) / (var + 1e-5).sqrt()
        outputs = network[4](normalised * network[2].weight + network[2].bias)
        assert result.tested["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).float().mean()))


def test_testing_changes_nothing_else() -> None:
    (untested, module, _), *others = (local_test_run(validate) for validate in (None, "trained", "received"))
    assert {result.num_tested for result in untested.results} == {0}
    assert untested.metric is None
    for _, other, _ in others:
        assert_same(weights(other), weights(module))
