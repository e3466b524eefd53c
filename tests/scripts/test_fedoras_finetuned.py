"""Tables of fine-tunings, from made folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_fednas.records import FinetuneFiles, SearchFiles, write_client_scores
from lit_fednas.records.files import replace_json
from tests.scripts.conftest import load


@pytest.fixture(scope="module")
def script():
    return load("fedoras_finetuned")


def folder(root: Path, name: str, test: float, initial: str = "supernet") -> Path:
    files = FinetuneFiles(root / name)
    row = dict.fromkeys(files.columns("tiers"), 0) | {"arch": "id", "eligible": 4, "rounds": 7, "macs": 3 * 10**9}
    accuracies = {"val_accuracy_before": 0.1, "val_accuracy": 0.3, "bytes_down": 5 * 10**8}
    tiers = [
        {**row, **accuracies, "tier": "small", "test_accuracy": test},
        {**row, **accuracies, "tier": "large", "test_accuracy": test + 0.1},
    ]
    files.write("tiers", tiers)
    files.write_settings({"initial": initial, "architectures": 0, "models": None, "search": "search"})
    files.write("candidates", [row | {"val_accuracy_before": 0.2 - 0.1 * place} for place, row in enumerate(tiers)])
    clients = [(0, "small", 0.2), (1, "small", 0.6), (2, "large", test)]
    write_client_scores(
        root / name,
        [{"client": c, "tier": t, "num_examples": 5, "accuracy": a, "loss": 1.0} for c, t, a in clients],
    )
    return root / name


def spent(root: Path) -> None:
    """Of the supernet's training 6 GMACs, of the search 500 examples through networks of 1 and 3 MMACs."""
    replace_json(root / "ledger.json", {"total": {"macs": 6 * 10**9}})
    search = SearchFiles(root / "search")
    search.write_settings({"num_examples": 500, "federated": None})
    rows = [
        dict.fromkeys(search.columns("evaluations"), 0) | {"arch": "id", "macs": macs} for macs in (10**6, 3 * 10**6)
    ]
    search.write("evaluations", rows)


def test_what_clients_spent_on_a_search_counts(script, tmp_path):
    spent(tmp_path)
    SearchFiles(tmp_path / "search").write_settings({"num_examples": 500, "communication": {"macs": 7 * 10**9}})
    (row, _) = script.finetuned_rows("ours", [folder(tmp_path, "one", 0.4)])
    assert row[-1] == "16.0"
    (tmp_path / "ledger.json").unlink()
    (row, _) = script.finetuned_rows("ours", [folder(tmp_path, "one", 0.4)])
    assert row[-1] == "nan"


def test_means_and_ranges_per_tier(script, tmp_path, capsys):
    spent(tmp_path)
    one, two, other = folder(tmp_path, "one", 0.4), folder(tmp_path, "two", 0.5), folder(tmp_path, "3", 0.4, "random")
    before_and_after = ["10.0 (10.0 to 10.0)", "30.0 (30.0 to 30.0)"]
    assert script.finetuned_rows("ours", [one, two]) == [
        ["ours", "small", "2", "4", "7", *before_and_after, "45.0 (40.0 to 50.0)", "3.0", "500.0", "11.0"],
        ["ours", "large", "2", "4", "7", *before_and_after, "55.0 (50.0 to 60.0)", "3.0", "500.0", "11.0"],
    ]
    assert [row[-1] for row in script.finetuned_rows("alone", [other])] == ["3.0", "3.0"]
    plot = tmp_path / "clients.png"
    assert script.main([f"ours={one},{two}", f"alone={other}", "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert plot.stat().st_size > 0
    assert "45.0 (40.0 to 50.0)" in shown
    assert shown.count("alone") == 3  # two tiers, and one row of clients; from scratch nothing is ranked before
    assert ["ours", "2", "4", "-1.00", "(-1.00", "to", "-1.00)"] in [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize(("word", "said"), [("runs/x", "is not of the form"), ("a=nowhere", "holds no finished")])
def test_what_is_not_there_is_told(script, capsys, word, said):
    assert script.main([word]) == 2
    assert said in capsys.readouterr().err
