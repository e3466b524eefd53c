"""Search and test of a run whose models grew, through the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lit_fednas.cli import main
from lit_fednas.records import read_suite

CONFIG = str(Path(__file__).parents[2] / "configs" / "fedtrans" / "digits.yaml")
QUICK = [
    *("--trainer.max_rounds", "4", "--trainer.check_val_every_n_rounds", "2", "--model.client.steps", "2"),
    *("--transform_on_convergence.gamma", "1", "--transform_on_convergence.delta", "1"),
    *("--transform_on_convergence.threshold", "1e9", "--transform_on_convergence.window", "1"),
]
RUN = Path("runs/fedtrans-digits/version_0")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_search_finds_for_every_tier_a_model_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", CONFIG, *QUICK]) == 0
    assert main(["search", "--config", CONFIG, "--search.evaluations", "10"]) == 0
    suite = read_suite(RUN)
    assert suite is not None
    macs = {f"model: {model['number']}": model["macs"] for model in suite["models"]}
    assert len(macs) == 3
    tiers = rows(RUN / "search" / "tiers.csv")
    assert len(tiers) == 8
    for place, tier in enumerate(tiers):
        assert int(tier["macs"]) == macs[tier["arch"]] <= macs["model: 0"] * 29 ** (place / 7) + 1
    evaluated = rows(RUN / "search" / "evaluations.csv")
    assert {row["arch"]: int(row["macs"]) for row in evaluated} == macs
    assert main(["test", "--config", CONFIG, "--ckpt_path", "last"]) == 0
    assert [row["subnet"] for row in rows(RUN / "subnets-test.csv")] == ["model0", "model1", "model2"]
