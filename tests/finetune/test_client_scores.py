"""Accuracies of single clients on their own data with their tiers' networks."""

import shutil
from copy import deepcopy

import pytest
import torch

from lit_fednas.assignment import CandidateGroups
from lit_fednas.finetune import Finetune
from lit_fednas.records import SearchFiles
from lit_fednas.rng import generator
from lit_fednas.search.tier_models import load_tier_network
from tests.finetune.small import MEMBERS, SIZES, Trained, module_of, rows, small_data
from tests.supernets.sequences import pruned_sequence
from tests.support import accuracy_and_loss, make_trainer


def one_by_one(data, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches = data.clients.batches(client, 1, generator(0, "any"), split="test", shuffle=False, augment=False)
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


@pytest.mark.parametrize("kind", ["search", "finetune"])
def test_every_client_gets_the_network_of_its_tier(tuned_once, tmp_path, kind):
    folder = shutil.copytree(tuned_once.folder / kind, tmp_path / kind)
    files = SearchFiles(folder)
    (folder / "clients.csv").unlink()
    Finetune(make_trainer(), tuned_once.module, tuned_once.data, folder).write_clients(files)
    new_rows, first_rows = (rows(parent / "clients.csv") for parent in (folder, tuned_once.folder / kind))
    for row, first in zip(new_rows, first_rows, strict=True):  # the order of sums differs between threads
        assert {**row, "loss": float(row["loss"])} == {**first, "loss": pytest.approx(float(first["loss"]), rel=1e-5)}
    assert list(new_rows[0]) == ["client", "tier", "num_examples", "accuracy", "loss"]
    assert [int(row["client"]) for row in new_rows] == [0, 1, 3, 4, 5]  # client 2 has no test data
    num_distinct = 0
    for row in new_rows:
        client = int(row["client"])
        assert client in MEMBERS[row["tier"]]
        inputs, targets = one_by_one(tuned_once.data, client)
        networks = {tier: load_tier_network(tuned_once.module.supernet, files, tier)[1] for tier in MEMBERS}
        scores = {tier: accuracy_and_loss(network, inputs, targets) for tier, network in networks.items()}
        assert (float(row["accuracy"]), float(row["loss"])) == pytest.approx(scores[row["tier"]], rel=1e-4)
        assert int(row["num_examples"]) == len(targets)
        num_distinct += len({round(loss, 4) for _, loss in scores.values()}) == 3
    assert num_distinct >= 4  # the networks differ, so that a wrong tier would be noticed


def correct_counts(network, data) -> list[int]:
    """Returns the number of correct examples of every client."""
    examples = [one_by_one(data, client) for client in range(6)]
    return [round(accuracy_and_loss(network, *pair)[0] * len(pair[1])) for pair in examples]


def test_all_clients_test_every_model_of_a_sequence_before_and_after(tmp_path):
    """Accuracies are pooled over all clients' examples; models without fine-tuning are tested too."""
    data = small_data(client_test=0.4)
    data.setup("fit")
    net = pruned_sequence(hidden=(6, 8), steps=2)
    run = Trained(module_of(net, tiers=None, assignment=CandidateGroups()), data, tmp_path)
    initial_networks = [deepcopy(network).eval() for network in net.networks]
    files = run.finetune(models=["model: 2", "0"], rounds=3)
    assert not (files.folder / "clients.csv").exists()
    tuned_networks = {f"model: {number}": load_tier_network(net, files, f"model-{number}")[1] for number in (0, 2)}
    counts = [round(0.4 * size) for size in SIZES]
    assert len(set(counts)) > 3  # so that the mean of clients' accuracies differs
    models = {row["arch"]: row for row in rows(files.folder / "models.csv")}
    client_rows = {(row["arch"], int(row["client"])): row for row in rows(files.folder / "models-clients.csv")}
    assert models.keys() == {"model: 0", "model: 1", "model: 2"}
    assert len(client_rows) == 3 * len(counts)
    for (arch, row), network in zip(sorted(models.items()), initial_networks, strict=True):
        correct_before = correct_counts(network, data)
        correct = tuned_networks.get(arch) and correct_counts(tuned_networks[arch], data)
        assert (int(row["clients"]), int(row["examples"])) == (6, sum(counts))
        assert int(row["macs_per_example"]) == net.macs(net.space.parse(arch))
        assert float(row["accuracy_before"]) == pytest.approx(sum(correct_before) / sum(counts))
        assert row["accuracy"] == "" if correct is None else float(row["accuracy"]) == sum(correct) / sum(counts)
        assert correct != correct_before
        for client, count in enumerate(counts):
            client_row = client_rows[arch, client]
            assert int(client_row["num_examples"]) == count
            assert float(client_row["accuracy_before"]) == pytest.approx(correct_before[client] / count)
            assert client_row["accuracy"] == ("" if correct is None else str(correct[client] / count))
