"""FedTrans' Table 2 from runs whose figures can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lit_fednas.analysis.comparisons import method_markdown, method_table, storage_bytes
from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records.run import write_client_scores
from tests.analysis.made_runs import made_run, unpadded
from tests.analysis.made_suites import made_suite


def scored(run: Run, accuracies: Sequence[float]) -> Run:
    """Writes the clients' accuracies, and a ledger of three times what the rounds say."""
    rows = [
        {"client": client, "tier": "*", "num_examples": 1 + client, "accuracy": accuracy, "loss": 1.0}
        for client, accuracy in enumerate(accuracies)
    ]
    write_client_scores(run.folder, rows)
    return run


@pytest.fixture
def methods(tmp_path: Path) -> dict[str, list[Run]]:
    ours = []
    for seed in (0, 1):
        run = made_suite(tmp_path / f"ours{seed}", rounds=[[{"client": 0, "macs": 100 + 100 * seed}]] * 3)
        ours.append(scored(run, [0.2 + 0.1 * seed, 0.4, 0.6, 0.8, 1.0]))
    other = made_run(tmp_path / "other", {"val/a/accuracy": [0.1] * 2}, 900, subnets={"a": 4, "b": 4})
    (other.folder / "ledger.json").write_text(
        json.dumps({"total": {"macs": 1350, "bytes_down": 7000, "bytes_up": 500}})
    )
    return {"ours": ours, "other": [scored(other, [0.5, 0.5, 1.0])]}


def test_each_run_by_hand(methods: dict[str, list[Run]]) -> None:
    table = method_table(methods)
    assert table["method"].tolist() == ["ours", "ours", "other"]
    assert table["accuracy"].tolist() == pytest.approx([0.6, 0.62, 2 / 3])  # a client counts once
    assert table["iqr"].tolist() == pytest.approx([0.4, 0.4, 0.25])
    assert table["worst"].tolist() == pytest.approx([0.2, 0.3, 0.5])
    assert table["macs"].tolist() == [300, 600, 1350]  # of the rounds; of the ledger
    assert table["network"].tolist() == [120, 120, 7500]
    assert table["storage"].tolist() == [400 + 1000 + 2_400_000] * 2 + [4]


def test_as_markdown(methods: dict[str, list[Run]]) -> None:
    lines = unpadded(method_markdown(method_table(methods))).splitlines()
    assert (
        lines[0] == "| method | seeds | accuracy (%) | IQR (%) | worst (%) | cost (MACs) | network | storage | × cost |"
    )
    accuracies = "61.00 (60.00 to 62.00) | 40.00 (40.00 to 40.00) | 25.00 (20.00 to 30.00)"
    assert lines[2] == f"| ours | 2 | {accuracies} | 450 (300 to 600) | 120 B | 2.4 MB | 1.0 |"
    assert lines[3] == "| other | 1 | 66.67 | 25.00 | 50.00 | 1.35 k | 7.5 kB | 4 B | 3.0 |"


def test_storage_is_that_of_the_largest_evaluated(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", {"val/a/accuracy": [0.1]})
    assert str(storage_bytes(run)) == "nan"
    head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes\n"
    (run.folder / "subnets-val.csv").write_text(head + "a,a,val,0.5,1,1,1,40\nb,b,val,0.5,1,1,1,20\n")
    assert storage_bytes(run) == 40
    (run.folder / "subnets-test.csv").write_text(head + "c,c,test,0.5,1,1,1,80\n")
    assert storage_bytes(run) == 80


def test_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    run = scored(made_run(tmp_path / "run", {"val/a/accuracy": [0.1]}, macs=None), [0.5])
    known = scored(made_run(tmp_path / "known", {"val/a/accuracy": [0.1]}, macs=10), [0.5])
    lines = unpadded(method_markdown(method_table({"a": [known, run], "b": [known]}))).splitlines()
    assert lines[2].endswith("| – | – | – | – |")
    assert lines[3].endswith("| 10 | 140 B | – | – |")


def test_a_run_without_its_clients(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"clients\.csv: is missing"):
        method_table({"a": [made_run(tmp_path / "run", {"val/a/accuracy": [0.1]})]})


def test_within_rounds_by_hand(tmp_path: Path) -> None:
    """Evaluated in the rounds 2 and 4 of five, counted from 1."""
    values = {
        "deployed/accuracy": [None, 0.25, None, 0.75, 0.9],
        "deployed/iqr": [None, 0.5, None, 0.125, 0.0],
        "deployed/worst": [None, 0.125, None, 0.25, 0.0],
    }
    run = made_run(tmp_path / "run", values)
    table = method_table({"a": [run]}, rounds=(2, 4))
    assert table["accuracy"].tolist() == [0.5]
    assert table["iqr"].tolist() == [0.3125]
    assert table["worst"].tolist() == [0.1875]
    assert table["macs"].tolist() == [400]  # four rounds of 100
    assert table["network"].tolist() == [4 * 1400]
    assert method_table({"a": [run]}, rounds=(3, 4))["accuracy"].tolist() == [0.75]
    with pytest.raises(DataError, match="has 5 rounds; name rounds up to that, not 6"):
        method_table({"a": [run]}, rounds=(2, 6))
    with pytest.raises(DataError, match="no clients in the rounds 3 to 3"):
        method_table({"a": [run]}, rounds=(3, 3))


def test_storage_of_the_models_that_were_there(tmp_path: Path) -> None:
    """Models are added after the rounds 1 and 2, counted from 0: the second round has ended with two."""
    run = made_suite(tmp_path / "run")
    assert [storage_bytes(run, until) for until in (1, 2, 3)] == [400, 1400, 2_401_400]
