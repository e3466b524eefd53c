"""Label sets that differ by tier, through search and fine-tuning (FedorAS, App. H)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.objectives import PathSampling
from lit_fednas.search import RandomSearch, Search, SearchSettings
from tests.finetune.small import (
    CLIENT,
    TIERS,
    Trained,
    accuracy_and_loss,
    by_tier,
    cohorts,
    last_weights,
    module_of,
    only_batch,
    path_cnn,
    rows,
    small_data,
)
from tests.support import fit, make_trainer

HALVES = [0, 0, 1, 1]
KNOWN = {"small": "halves", "middle": "halves"}  # clients 1, 4, 0, 2, 5; client 3 has the classes


def trained(folder: Path, labels: str | None = None) -> Trained:
    supernet = path_cnn(label_sets={"halves": HALVES})
    module = module_of(
        supernet,
        assignment=Subspaces(share=1.0, labels=labels),
        objective=PathSampling(),
        aggregation=OperatorAverage(min_clients=1),
        tiers=replace(TIERS, labels=KNOWN),
        client=CLIENT,
    )
    made = Trained(module, small_data(), folder)
    fit(made.module, made.data, 4, check_val_every_n_rounds=4)
    settings = SearchSettings(method=RandomSearch(), evaluations=6, labels=labels)
    Search(make_trainer(), made.module, made.data, folder).run(None, settings)
    return made


@pytest.fixture(scope="module")
def multi_task(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("multi-task"))


def test_each_tier_is_searched_and_trained_on_its_own_labels(multi_task: Trained) -> None:
    found = {row["tier"]: row for row in rows(multi_task.folder / "search" / "tiers.csv")}
    assert {tier: row["arch"].endswith("> halves") for tier, row in found.items()} == {
        "small": True,
        "middle": True,
        "large": False,
    }
    inputs, classes = only_batch(multi_task.data.val_dataloader())
    supernet = multi_task.module.supernet.eval()
    for tier, row in found.items():
        wanted = torch.tensor(HALVES)[classes] if tier in KNOWN else classes
        arch = supernet.space.parse(row["arch"])
        accuracy, loss = accuracy_and_loss(lambda x, arch=arch: supernet(x, arch), inputs, wanted)
        assert float(row["val_accuracy"]) == pytest.approx(accuracy, abs=1e-6), tier
        assert float(row["val_loss"]) == pytest.approx(loss, rel=1e-5), tier
    front = rows(multi_task.folder / "search" / "front.csv")
    assert not any("halves" in row["arch"] for row in front if row["tier"] == "*")  # accuracies of other labels

    files = multi_task.finetune()
    tuned = by_tier(files)
    for tier in tuned:
        assert tuned[tier]["arch"] == found[tier]["arch"]
        assert float(tuned[tier]["val_accuracy_before"]) == pytest.approx(float(found[tier]["val_accuracy"]))
        labels = last_weights(multi_task.path(tier))
        heads = {name.split(".")[1] for name in labels if name.startswith("heads.")}
        assert heads == {"halves" if tier in KNOWN else "own"}
    assert {client for cohort in cohorts(multi_task.path("large")) for client in cohort} == {3}
    clients = rows(files.folder / "clients.csv")
    assert len(clients) == 5  # one has no test data
    supernet_inputs = {int(row["client"]): row for row in clients}
    for client in (1, 3):  # on halves, and on classes
        x, y = only_batch(multi_task.data.clients.batches(client, 64, torch.Generator(), split="test", shuffle=False))
        tier = supernet_inputs[client]["tier"]
        network = supernet.build(supernet.space.parse(tuned[tier]["arch"]))
        network.load_state_dict(torch.load(files.tier_folder(tier) / "weights.pt", weights_only=True))
        wanted = torch.tensor(HALVES)[y] if tier in KNOWN else y
        accuracy, _ = accuracy_and_loss(network.eval(), x, wanted)
        assert float(supernet_inputs[client]["accuracy"]) == pytest.approx(accuracy, abs=1e-6)


def test_transfer_trains_the_classifier_first_and_only_where_the_labels_are(tmp_path: Path) -> None:
    made = trained(tmp_path, labels="halves")
    searched = rows(made.folder / "search" / "tiers.csv")
    assert all(row["arch"].endswith("> halves") for row in searched)
    shared = {name: tensor.clone() for name, tensor in made.module.supernet.shared_tensors().items()}
    files = made.finetune(labels="own", head_rounds=2)
    tuned = by_tier(files)
    for row in searched:
        tier = row["tier"]
        assert tuned[tier]["arch"] == row["arch"].removesuffix(" > halves")
        assert tuned[tier]["eligible"] == "1"
        folder = files.folder / "runs" / f"{tier}-0"
        head = folder.with_name(f"{tier}-0-head")
        assert {client for run in (head, folder) for cohort in cohorts(run) for client in cohort} == {3}
        for name, tensor in last_weights(head).items():
            before = shared[f"network.{name}"]
            if name.startswith("heads.own."):
                assert not torch.equal(tensor, before), name
            elif not name.startswith("heads."):
                torch.testing.assert_close(tensor, before, rtol=1e-5, atol=1e-6, msg=name)
        moved = last_weights(folder)
        assert any(
            not torch.allclose(tensor, last_weights(head)[name], atol=1e-4)
            for name, tensor in moved.items()
            if name.startswith("stem.")
        )
