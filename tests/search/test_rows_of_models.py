"""Search, fine-tuning, export, test and report of a run whose models shrank, through the command line."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lit_fednas.cli import main
from lit_fednas.records import FinetuneFiles
from lit_fednas.records.run import SEQUENCE_FILE, read_models
from tests.finetune.small import rows, tier_weights

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"
FAMILY = {"class_path": "lit_fednas.supernets.SlicedConvNet", "init_args": {"hidden": [4, 8, 8], "pools": [1, 2]}}
QUICK: dict[str, Any] = {
    "trainer": {"check_val_every_n_rounds": 5, "enable_progress_bar": False},
    "model": {"supernet": {"init_args": {"family": FAMILY}}, "client": {"epochs": 1}},
    "prune_by_budgets": {"budget": 0.5, "first": 0.2, "rounds": {1: 2}, "groups": 2, "initial_rounds": 1},
    "data": {"num_clients": 8},
}
FINETUNE = {"finetune": {"models": ["model: 1", "smallest"], "in_groups": True, "rounds": 2}}
RUN = Path("runs/fednas-digits/version_0")
OPTIONS = ["--config", str(CONFIGS / "fednas" / "digits.yaml"), "--config", "quick.yaml"]


def test_a_run_of_several_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("quick", QUICK), ("finetune", FINETUNE)):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(content))
    assert main(["fit", *OPTIONS]) == 0
    sequence = read_models(RUN, SEQUENCE_FILE)
    assert sequence is not None
    models = {f"model: {entry['number']}": entry for entry in sequence["models"]}
    macs = {name: entry["macs"] for name, entry in models.items()}
    assert len(macs) >= 3
    assert sorted(macs.values(), reverse=True) == list(macs.values())

    tiers_of_search = ["--search.tiers", "lit_fednas.tiers.CumulativeCostTiers"]
    assert main(["search", *OPTIONS, *tiers_of_search, "--search.evaluations", "10"]) == 0
    tiers = rows(RUN / "search" / "tiers.csv")
    assert all(int(tier["macs"]) == macs[tier["arch"]] for tier in tiers)
    assert {row["arch"]: int(row["macs"]) for row in rows(RUN / "search" / "evaluations.csv")} == macs
    assert main(["test", *OPTIONS, "--ckpt_path", "last"]) == 0
    tested = {row["arch"]: int(row["macs"]) for row in rows(RUN / "subnets-test.csv")}
    assert tested
    assert tested.items() <= macs.items()

    assert main(["finetune", *OPTIONS, "--config", "finetune.yaml"]) == 0
    last = f"model: {len(models) - 1}"
    files = FinetuneFiles(RUN / "finetune")
    found = {row["tier"]: row for row in rows(RUN / "finetune" / "tiers.csv")}
    assert {tier: row["arch"] for tier, row in found.items()} == {"model-1": "model: 1", last.replace(": ", "-"): last}
    assert sum(files.settings()["eligible"].values()) == QUICK["data"]["num_clients"]
    for row in found.values():
        assert int(row["parameters"]) == models[row["arch"]]["parameters"]
        assert float(row["val_loss"]) < float(row["val_loss_before"])

    assert main(["export", *OPTIONS, "--tier", "model-1", "--name", "finetune"]) == 0
    program = torch.export.load(files.tier_folder("model-1") / "network.pt2").module()
    weights = [tensor for tensor in tier_weights(files)["model-1"].values() if tensor.ndim == 4]
    assert len(weights) == 3
    for tensor in weights:
        assert any(torch.equal(one, tensor) for one in program.state_dict().values())
    assert main(["report", str(RUN)]) == 0
