"""Many clients in one batch: the same scores as client by client."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.data import Dirichlet
from lit_fednas.federation import EvaluationSettings
from lit_fednas.federation.evaluation import ClientScore, batches_of_clients, client_scores
from lit_fednas.rng import generator
from tests.support import tiny_data


def clients_of(**settings):
    data = tiny_data(9, **{"partitioner": Dirichlet(0.5, min_size=3), "client_test": 0.5, **settings})
    data.setup("fit")
    return data.clients


def net(classes=4):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)).eval()


def jointly(network, clients, batch_size, **settings):
    sizes = {client: clients.size(client, settings.get("split", "test")) for client in range(clients.num_clients)}
    batches = batches_of_clients(sizes, batch_size)
    settings["batch_size"] = batch_size
    return [score for those in batches for score in client_scores(network, clients, those, **settings)]


def by_hand(network, clients, split="test", settings=EvaluationSettings(), targets=lambda classes: classes):
    """Client by client, from its examples and nobody else's."""
    found = []
    for client in range(clients.num_clients):
        batches = list(clients.batches(client, 4, generator(0, "x"), split=split, shuffle=False, augment=False))
        if not batches:
            continue
        inputs, classes = (torch.cat(parts) for parts in zip(*batches, strict=True))
        with torch.no_grad():
            logits, labels = settings.logits(network, inputs).double(), targets(classes)
        # how many labels are likelier than the right one
        better = (logits > logits.gather(1, labels[:, None])).sum(1)
        loss = (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()
        accuracy = (better < settings.top_k).double().mean()
        means = {"accuracy": float(accuracy), "loss": float(loss)}
        found.append(ClientScore(client, len(labels), len(labels), means, means))
    return found


def assert_equal(found, wanted):
    assert [score[:2] for score in found] == [score[:2] for score in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.metrics["accuracy"] == pytest.approx(other.metrics["accuracy"], abs=1e-7)
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-5)


@pytest.mark.parametrize(("batch_size", "top_k"), [(4, 2), (512, 1)])
def test_equal_to_one_by_one(batch_size, top_k):
    clients, network = clients_of(), net()
    settings = EvaluationSettings(top_k=top_k)
    wanted = by_hand(network, clients, settings=settings)
    assert len({score.metrics["accuracy"] for score in wanted}) > 2
    assert_equal(jointly(network, clients, batch_size, settings=settings), wanted)


def test_settings_and_labels_are_respected():
    clients, network = clients_of(client_val=0.2), net(2)
    given = {"split": "val", "targets": lambda classes: classes // 2}  # 2 labels of 4 classes
    half = {"settings": EvaluationSettings(precision="bf16-mixed", channels_last=True)}
    found, full = jointly(network, clients, 512, **given, **half), jointly(network, clients, 512, **given)
    assert_equal(found, by_hand(network, clients, **given, **half))
    losses = [[score.metrics["loss"] for score in one] for one in (found, full)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-5)
    likeliest = jointly(network, clients, 512, settings=EvaluationSettings(top_k=3), **given)  # of two labels
    assert {score.metrics["accuracy"] for score in likeliest} == {1.0}


def test_batches_by_hand():
    assert batches_of_clients({0: 2, 1: 2, 2: 1, 3: 5, 4: 0, 5: 1}, 4) == [[0, 1], [2], [3], [5]]
