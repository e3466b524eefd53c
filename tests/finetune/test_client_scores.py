"""Single clients' accuracies on their own data, each with its tier's network."""

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
    found = data.clients.batches(client, 1, generator(0, "any"), split="test", shuffle=False, augment=False)
    inputs, targets = zip(*found, strict=True)
    return torch.cat(inputs), torch.cat(targets)


@pytest.mark.parametrize("kind", ["search", "finetune"])
def test_every_client_gets_the_network_of_its_tier(tuned_once, tmp_path, kind):
    folder = shutil.copytree(tuned_once.folder / kind, tmp_path / kind)
    files = SearchFiles(folder)
    (folder / "clients.csv").unlink()
    Finetune(make_trainer(), tuned_once.module, tuned_once.data, folder).write_clients(files)
    found, before = (rows(place / "clients.csv") for place in (folder, tuned_once.folder / kind))
    for row, other in zip(found, before, strict=True):  # some kernels of several threads add up in another order
        assert {**row, "loss": float(row["loss"])} == {**other, "loss": pytest.approx(float(other["loss"]), rel=1e-5)}
    assert list(found[0]) == ["client", "tier", "num_examples", "accuracy", "loss"]
    assert [int(row["client"]) for row in found] == [0, 1, 3, 4, 5]  # client 2 holds no test data
    others = 0
    for row in found:
        client = int(row["client"])
        assert client in MEMBERS[row["tier"]]
        inputs, targets = one_by_one(tuned_once.data, client)
        networks = {tier: load_tier_network(tuned_once.module.supernet, files, tier)[1] for tier in MEMBERS}
        scores = {tier: accuracy_and_loss(network, inputs, targets) for tier, network in networks.items()}
        assert (float(row["accuracy"]), float(row["loss"])) == pytest.approx(scores[row["tier"]], rel=1e-4)
        assert int(row["num_examples"]) == len(targets)
        others += len({round(loss, 4) for _, loss in scores.values()}) == 3
    assert others >= 4  # the networks differ, so that another tier's would have been noticed


def right(network, data) -> list[int]:
    """Of every client."""
    examples = [one_by_one(data, client) for client in range(6)]
    return [round(accuracy_and_loss(network, *one)[0] * len(one[1])) for one in examples]


def test_all_clients_test_every_model_of_a_sequence_before_and_after(tmp_path):
    """Pooled: right ones of all clients over their examples; models that are not fine-tuned are tested too."""
    data = small_data(client_test=0.4)
    data.setup("fit")
    net = pruned_sequence(hidden=(6, 8), steps=2)
    made = Trained(module_of(net, tiers=None, assignment=CandidateGroups()), data, tmp_path)
    first = [deepcopy(network).eval() for network in net.networks]
    files = made.finetune(models=["model: 2", "0"], rounds=3)
    assert not (files.folder / "clients.csv").exists()
    last = {f"model: {number}": load_tier_network(net, files, f"model-{number}")[1] for number in (0, 2)}
    counts = [round(0.4 * size) for size in SIZES]
    assert len(set(counts)) > 3  # so that a mean of the clients' accuracies is another
    found = {row["arch"]: row for row in rows(files.folder / "models.csv")}
    singly = {(row["arch"], int(row["client"])): row for row in rows(files.folder / "models-clients.csv")}
    assert found.keys() == {"model: 0", "model: 1", "model: 2"}
    assert len(singly) == 3 * len(counts)
    for (arch, row), network in zip(sorted(found.items()), first, strict=True):
        expected = right(network, data)
        tuned = last.get(arch) and right(last[arch], data)
        assert (int(row["clients"]), int(row["examples"])) == (6, sum(counts))
        assert int(row["macs_per_example"]) == net.macs(net.space.parse(arch))
        assert float(row["accuracy_before"]) == pytest.approx(sum(expected) / sum(counts))
        assert row["accuracy"] == "" if tuned is None else float(row["accuracy"]) == sum(tuned) / sum(counts)
        assert tuned != expected
        for client, count in enumerate(counts):
            one = singly[arch, client]
            assert int(one["num_examples"]) == count
            assert float(one["accuracy_before"]) == pytest.approx(expected[client] / count)
            assert one["accuracy"] == ("" if tuned is None else str(tuned[client] / count))
