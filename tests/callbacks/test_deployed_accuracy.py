"""Tests the accuracy of each client's deployed model against an evaluation by hand."""

from __future__ import annotations

import statistics
from functools import partial
from types import SimpleNamespace

import pytest

from lit_fednas.analysis.clients import read_client_scores
from lit_fednas.callbacks import DeployedAccuracy, DeviceAverage, RunRecorder
from lit_fednas.callbacks import deployed_accuracy as source
from lit_fednas.data import ClientData, Dirichlet
from lit_fednas.federation import EvaluationSettings, FederatedCallback
from lit_fednas.federation.evaluation import recalibrated
from lit_fednas.records import read_rounds
from lit_fednas.rng import generator
from lit_fednas.supernets import BatchNorm
from tests.callbacks.test_device_average import method
from tests.support import accuracy_and_loss, assert_same, fit, tiny_data, weights

ROUNDS = 4
CLIENTS = 9
FIGURES = {"deployed/accuracy", "deployed/iqr", "deployed/worst"}


def data(**settings):
    return tiny_data(CLIENTS, **{"partitioner": Dirichlet(1.0, min_size=6), "client_test": 0.4, **settings})


def by_hand(module, clients, split="test", make=lambda network: network.eval()):
    """Returns each client's tier, architecture, number of examples, accuracy and loss, with one network per client."""
    rows = {}
    for client in range(clients.num_clients):
        if clients.size(client, split) == 0:
            continue
        tier = module.population.tier(client)
        arch = module.assignment.deployed(client)
        network = make(module.supernet.subnet(arch))
        draws = generator(0, "any")
        ((x, y),) = clients.batches(client, 10**6, draws, split=split, shuffle=False, augment=False)
        rows[client] = (tier.name, str(arch), len(y), *accuracy_and_loss(network, x, y))
    return rows


def by_client(rows):
    return {
        row["client"]: tuple(row[name] for name in ("tier", "arch", "num_examples", "accuracy", "loss")) for row in rows
    }


def assert_rows(rows, expected):
    actual = by_client(rows)
    assert list(actual) == list(expected)
    for client in expected:
        assert actual[client][:3] == expected[client][:3]
        assert actual[client][3:] == pytest.approx(expected[client][3:], rel=1e-5, abs=1e-6)


class Witness(FederatedCallback):
    """Evaluates by hand at every validation, and records the logged metrics."""

    def __init__(self, callback):
        self.callback = callback
        self.expected, self.logged, self.rows = [], [], []

    def on_validation_end(self, trainer, module):
        self.expected.append(by_hand(module, trainer.datamodule.clients))
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items() if name in FIGURES})
        self.rows.append(self.callback.rows)
        assert not module.supernet.training


def figures(rows):
    """Returns the metrics of rows, with the standard library's quartiles."""
    values = [row[3] for row in rows.values()]
    low, _, high = statistics.quantiles(values, method="inclusive")
    mean, worst = statistics.fmean(values), min(values)
    return {"deployed/accuracy": mean, "deployed/iqr": high - low, "deployed/worst": worst}


def run(folder, callback, module=None, rounds=ROUNDS, extra=(), datamodule=None, **settings):
    module = module or method()
    callbacks = [callback, *extra, RunRecorder()]
    trainer = fit(module, datamodule or data(), rounds, callbacks=callbacks, default_root_dir=str(folder), **settings)
    return module, trainer


def test_by_hand_at_every_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_BATCH_SIZE", 11)  # several batches for each architecture
    callback = DeployedAccuracy()
    witness = Witness(callback)
    run(tmp_path, callback, extra=[witness])
    assert len(witness.expected) == ROUNDS
    for rows, logged, expected in zip(witness.rows, witness.logged, witness.expected, strict=True):
        assert_rows(rows, expected)
        assert {row[1] for row in expected.values()} == {"exits: 1", "exits: 1,2"}
        assert logged == pytest.approx(figures(expected), abs=1e-6)
    assert len({tuple(logged.values()) for logged in witness.logged}) > 1
    last = figures(witness.expected[-1])
    assert last["deployed/iqr"] > 0
    read = read_client_scores(tmp_path)
    assert read["accuracy"].mean() == pytest.approx(last["deployed/accuracy"])


def test_training_does_not_change(tmp_path):
    with_it, _ = run(tmp_path / "a", DeployedAccuracy(every_n_rounds=1), extra=[DeviceAverage()], rounds=2)
    without, _ = run(tmp_path / "b", FederatedCallback(), rounds=2)
    assert_same(weights(with_it), weights(without))
    assert with_it.supernet.training == without.supernet.training


def test_records_have_no_values_of_earlier_rounds(tmp_path):
    callback = DeployedAccuracy(every_n_rounds=3)
    module, trainer = run(tmp_path, callback, rounds=5, check_val_every_n_rounds=2)
    assert [FIGURES & record["metrics"].keys() for record in read_rounds(tmp_path)] == [
        FIGURES if number == 2 else set() for number in range(5)
    ]
    # The last round is evaluated at the end.
    assert_rows(callback.rows, by_hand(module, trainer.datamodule.clients))


def with_statistics(module, clients):
    batches = module.recalibration_batches(clients)
    return {"make": lambda network: recalibrated(network, batches)}


OF_BATCHES = BatchNorm(running_statistics=False)
#: Settings of the callback, the method and the data, and of the evaluation by hand.
SETTINGS = {
    "every second round": ({"every_n_rounds": 2}, {"norm": BatchNorm()}, {}, None),  # the server is training
    "val": ({"split": "val"}, {}, {"client_val": 0.3, "client_test": 0.0}, lambda module, clients: {"split": "val"}),
    "channels last": (
        {},
        {"evaluation": EvaluationSettings(["largest"], channels_last=True)},
        {},
        lambda module, clients: {"make": lambda network: partial(module.evaluation.logits, network.eval())},
    ),
    "norms with new statistics": (
        {},
        {"norm": OF_BATCHES, "evaluation": EvaluationSettings(["largest"], recalibrate_batches=3)},
        {},
        with_statistics,
    ),
}


@pytest.mark.parametrize(("settings", "parts", "of_data", "changes"), SETTINGS.values(), ids=list(SETTINGS))
def test_settings_by_hand(tmp_path, settings, parts, of_data, changes):
    """The evaluation uses the weights after the server's step."""
    callback = DeployedAccuracy(**settings)
    module, trainer = run(tmp_path, callback, method(**parts), rounds=2, datamodule=data(**of_data))
    clients = trainer.datamodule.clients
    expected = by_hand(module, clients, **(changes(module, clients) if changes else {}))
    assert_rows(callback.rows, expected)
    if changes:
        assert by_client(callback.rows) != by_hand(module, clients, **settings)
    record = list(read_rounds(tmp_path))[1]
    assert {name: record["metrics"][name] for name in FIGURES} == pytest.approx(figures(expected), abs=1e-6)


def test_clients_without_examples_are_left_out(tmp_path):
    callback, datamodule = DeployedAccuracy(), data()
    datamodule.setup("fit")
    clients = datamodule.clients
    rows = {split: [clients.rows(client, split).numpy() for client in range(9)] for split in ("train", "val", "test")}
    rows["test"] = [indices[:0] if client in (0, 4) else indices for client, indices in enumerate(rows["test"])]
    datamodule.clients = ClientData(clients.reader, rows, task=clients.task)
    datamodule.setup = lambda stage: None
    run(tmp_path, callback, method(), rounds=1, datamodule=datamodule)
    assert [row["client"] for row in callback.rows] == [1, 2, 3, 5, 6, 7, 8]


def test_two_ranks_share_the_work_of_one(tmp_path, monkeypatch):
    """The rows of two ranks together equal those of one, as the batches are the same."""
    monkeypatch.setattr(source, "_BATCH_SIZE", 11)
    callback, gathered = DeployedAccuracy(), DeployedAccuracy()
    module, trainer = run(tmp_path, callback)
    module.supernet.eval()

    def rank(number, gather=None):
        loop = SimpleNamespace(ranks=SimpleNamespace(gather=gather))
        attributes = {"datamodule": trainer.datamodule, "world_size": 2, "global_step": ROUNDS, "fit_loop": loop}
        return SimpleNamespace(global_rank=number, **attributes)

    other = callback._share(rank(1), module)
    gathered._evaluate(rank(0, lambda rows: [rows, other]), module)
    assert gathered.rows == callback.rows
    assert 0 < len(other) < len(callback.rows)
