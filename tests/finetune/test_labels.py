"""Label sets that differ by tier, through search and fine-tuning (FedorAS, App. H)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_fednas.aggregation import OperatorAverage
from lit_fednas.assignment import Subspaces
from lit_fednas.objectives import PathSampling
from lit_fednas.search.tier_models import load_tier_network
from tests.finetune.small import (
    TIERS,
    Trained,
    accuracy_and_loss,
    by_tier,
    cohorts,
    last_weights,
    only_batch,
    path_cnn,
    rows,
    searched,
)

HALVES = [0, 0, 1, 1]
KNOWN = {"small": "halves", "middle": "halves"}  # clients 1, 4, 0, 2, 5; client 3 has the classes


def trained(folder: Path, labels: str | None = None) -> Trained:
    return searched(
        folder,
        labels=labels,
        supernet=path_cnn(label_sets={"halves": HALVES}),
        assignment=Subspaces(share=1.0, labels=labels),
        objective=PathSampling(),
        aggregation=OperatorAverage(min_clients=1),
        tiers=replace(TIERS, labels=KNOWN),
    )


def test_each_tier_is_searched_and_trained_on_its_own_labels(tmp_path: Path) -> None:
    made = trained(tmp_path)
    found = {row["tier"]: row for row in rows(made.folder / "search" / "tiers.csv")}
    assert [tier for tier, row in found.items() if row["arch"].endswith("> halves")] == list(KNOWN)
    inputs, classes = only_batch(made.data.val_dataloader())
    supernet = made.module.supernet.eval()
    for tier, row in found.items():
        wanted = torch.tensor(HALVES)[classes] if tier in KNOWN else classes
        arch = supernet.space.parse(row["arch"])
        accuracy, loss = accuracy_and_loss(lambda x, arch=arch: supernet(x, arch), inputs, wanted)
        assert float(row["val_accuracy"]) == pytest.approx(accuracy, abs=1e-6), tier
        assert float(row["val_loss"]) == pytest.approx(loss, rel=1e-5), tier
    front = rows(made.folder / "search" / "front.csv")
    assert not any("halves" in row["arch"] for row in front if row["tier"] == "*")  # accuracies of other labels

    files = made.finetune()
    for tier, row in by_tier(files).items():
        assert row["arch"] == found[tier]["arch"]
        assert float(row["val_accuracy_before"]) == pytest.approx(float(found[tier]["val_accuracy"]))
        heads = {name.split(".")[1] for name in last_weights(made.path(tier)) if name.startswith("heads.")}
        assert heads == {"halves" if tier in KNOWN else "own"}
    assert {client for cohort in cohorts(made.path("large")) for client in cohort} == {3}
    scores = rows(files.folder / "clients.csv")
    assert len(scores) == 5  # one has no test data
    for row in scores:
        batches = made.data.clients.batches(int(row["client"]), 64, torch.Generator(), split="test", shuffle=False)
        x, y = only_batch(batches)
        _, network = load_tier_network(supernet, files, row["tier"])
        wanted = torch.tensor(HALVES)[y] if row["tier"] in KNOWN else y
        assert float(row["accuracy"]) == pytest.approx(accuracy_and_loss(network, x, wanted)[0], abs=1e-6)


@pytest.mark.slow
def test_transfer_trains_the_classifier_first_and_only_where_the_labels_are(tmp_path: Path) -> None:
    made = trained(tmp_path, labels="halves")
    searched_rows = rows(made.folder / "search" / "tiers.csv")
    assert all(row["arch"].endswith("> halves") for row in searched_rows)
    shared = {name: tensor.clone() for name, tensor in made.module.supernet.shared_tensors().items()}
    files = made.finetune(labels="own", head_rounds=2)
    tuned = by_tier(files)
    for row in searched_rows:
        tier = row["tier"]
        assert tuned[tier]["arch"] == row["arch"].removesuffix(" > halves")
        assert tuned[tier]["eligible"] == "1"
        folder = files.folder / "runs" / f"{tier}-0"
        head = folder.with_name(f"{tier}-0-head")
        assert {client for run in (head, folder) for cohort in cohorts(run) for client in cohort} == {3}
        before, after = last_weights(head), last_weights(folder)
        for name, tensor in before.items():
            if name.startswith("heads.own."):
                assert not torch.equal(tensor, shared[f"network.{name}"]), name
            elif not name.startswith("heads."):
                torch.testing.assert_close(tensor, shared[f"network.{name}"], rtol=1e-5, atol=1e-6, msg=name)
        stems = [name for name in after if name.startswith("stem.")]
        assert any(not torch.allclose(after[name], before[name], atol=1e-4) for name in stems)
