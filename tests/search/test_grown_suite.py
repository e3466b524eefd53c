"""Search, export, test and report of a run whose models grew, through the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from lit_fednas.cli import main
from lit_fednas.records import read_suite

CONFIG = str(Path(__file__).parents[2] / "configs" / "fedtrans" / "digits.yaml")
QUICK = [
    *("--trainer.max_rounds", "4", "--trainer.check_val_every_n_rounds", "2", "--model.client.steps", "2"),
    *("--transform_on_convergence.gamma", "1", "--transform_on_convergence.delta", "1"),
    *("--transform_on_convergence.threshold", "1e9", "--transform_on_convergence.window", "1"),
]


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A run of three models, searched."""
    folder = tmp_path_factory.mktemp("grown")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", CONFIG, *QUICK]) == 0
        assert main(["search", "--config", CONFIG, "--search.evaluations", "10"]) == 0
    return folder / "runs" / "fedtrans-digits" / "version_0"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_search_finds_for_every_tier_a_model_that_fits(grown) -> None:
    suite = read_suite(grown)
    assert suite is not None
    macs = {f"model: {model['number']}": model["macs"] for model in suite["models"]}
    assert len(macs) == 3
    tiers = rows(grown / "search" / "tiers.csv")
    assert len(tiers) == 8
    least = macs["model: 0"]
    for place, tier in enumerate(tiers):
        assert int(tier["macs"]) == macs[tier["arch"]] <= least * 29 ** (place / 7) + 1
    evaluated = rows(grown / "search" / "evaluations.csv")
    assert {row["arch"]: int(row["macs"]) for row in evaluated} == macs


@pytest.mark.slow
def test_the_models_are_tested_exported_and_reported(grown, monkeypatch) -> None:
    monkeypatch.chdir(grown.parents[2])
    assert main(["test", "--config", CONFIG, "--ckpt_path", "last"]) == 0
    assert [row["subnet"] for row in rows(grown / "subnets-test.csv")] == ["model0", "model1", "model2"]
    assert main(["export", "--config", CONFIG, "--tier", "level8"]) == 0
    exported = torch.export.load(grown / "search" / "tiers" / "level8" / "network.pt2").module()
    assert exported(torch.zeros(2, 1, 12, 12, dtype=torch.uint8)).shape == (2, 10)
    assert main(["report", str(grown)]) == 0
    page = (grown / "report.html").read_text()
    assert ">Models<" in page
    assert "widen" in page
