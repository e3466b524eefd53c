"""The study of federated scores, on a run of two rounds."""

from __future__ import annotations

import csv
import json
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lit_fednas.cli import main as command

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "trainer": {"max_rounds": 1, "check_val_every_n_rounds": 100, "accelerator": "cpu"},
    "model": {"client": {"epochs": 1}, "evaluation": {"sampled": 0}},
    "data": {"client_val": 0.3, "server_val": 0},
}
SEARCH = {
    "search": {
        "evaluations": 8,
        "method": {"class_path": "lit_fednas.search.RandomSearch", "init_args": {"sample": 4}},
    }
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "federated_search"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "small.yaml").write_text(yaml.safe_dump(SETTINGS))
    (home / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    before = Path.cwd()
    os.chdir(home)
    words = ["--config", str(ROOT / "configs/fedoras/digits.yaml"), "--config", "small.yaml"]
    assert command(["fit", *words]) == 0
    yield home / "runs/fedoras-digits/version_0"
    os.chdir(before)


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_tables_and_figure(script, run, capsys):
    """Twelve clients in three tiers, six in a cohort: two rounds ask all, one asks all of the upper tiers."""
    words = [str(run), "--config", "search.yaml", "--archs", "6", "--repeats", "3"]
    assert script["main"](words) == 0, capsys.readouterr().err
    folder = run / "federated_search"
    ranking, totals, sizes = (read(folder / f"{name}.csv") for name in ("ranking", "communication", "sizes"))
    last = {row["tier"]: row for row in ranking}
    assert {tier: (row["evaluation_rounds"], row["clients"]) for tier, row in last.items()} == {
        "tier1": ("2", "12"),
        "tier2": ("2", "8"),
        "tier3": ("1", "4"),
    }
    for row in last.values():
        assert float(row["tau_least"]) == pytest.approx(1)
        assert float(row["tau_std"]) == pytest.approx(0)
    assert float(ranking[0]["tau_least"]) < 1
    for row in totals:
        written = read(folder / f"rounds_{row['evaluation_rounds']}" / "federated.csv")
        own = [one for one in written if one["tier"] == row["tier"]]
        assert int(row["bytes_down"]) == sum(int(one["bytes_down"]) for one in own)
        assert int(row["macs"]) == sum(int(one["macs"]) for one in own)
        assert int(row["clients"]) == max(int(one["clients"]) for one in own)
        shown = [
            one for one in sizes if (one["tier"], one["evaluation_rounds"]) == (row["tier"], row["evaluation_rounds"])
        ]
        assert [one["supernet_bytes"] for one in shown] == [one["supernet_bytes"] for one in own]
    assert len(totals) == 5
    assert (folder / "federated_search.png").stat().st_size > 0
    assert script["main"]([str(run), "--config", "nothing.yaml"]) == 2


def test_correlations_by_hand(script):
    """Three architectures on two clients of one and three examples; of six pairs of ranks, one is turned round."""
    right = np.array([[0.0, 3.0], [1.0, 1.0], [0.0, 1.0]])  # means over all: 0.75, 0.5, 0.25
    sizes = np.array([1, 3])
    answers = np.stack([np.broadcast_to(sizes, right.shape), right], 2)
    found = script["rank_correlations"](answers, lambda sums: sums[1] / sums[0], [[0, 1], [1, 0]], [1, 2])
    assert found[:, 1] == pytest.approx([1, 1])
    # the first client says 0, 1, 0: one pair agrees, one does not, one is tied (tau-b)
    assert found[0, 0] == pytest.approx(0)
    # the second says 1, 1/3, 1/3: two pairs agree, one is tied
    assert found[1, 0] == pytest.approx(2 / np.sqrt(3 * 2))


@pytest.mark.slow
def test_an_architecture_is_evaluated_once_on_a_client(script, run, monkeypatch):
    seen: list[tuple[Any, int]] = []
    base = script["Remembering"].__mro__[1]
    plain = base.answers

    def watched(self, arch, clients):
        seen.extend((arch, client) for client in clients)
        return plain(self, arch, clients)

    monkeypatch.setattr(base, "answers", watched)
    assert script["main"]([str(run), "--config", "search.yaml", "--archs", "6", "--output", "again"]) == 0
    assert len(seen) == len(set(seen)) > 100
    assert json.loads(Path("again/rounds_2/settings.json").read_text())["federated"]["rounds"] == 2
