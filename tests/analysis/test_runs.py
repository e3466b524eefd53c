"""A run's folder as tables: what is in the files, and what happens without them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from lit_fednas.analysis import newest_run, read_run, read_search
from lit_fednas.errors import DataError
from lit_fednas.records import (
    ROUNDS_FILE,
    FinetuneFiles,
    SearchFiles,
    append_round,
)


def test_rounds_and_clients_are_those_of_the_file(finished_run: Path) -> None:
    run = read_run(finished_run)
    records = [json.loads(line) for line in (finished_run / ROUNDS_FILE).read_text().splitlines()]
    assert run.name == "digits/version_0"
    assert run.rounds["round"].tolist() == [0, 1, 2]
    for record, (_, row) in zip(records, run.rounds.iterrows(), strict=True):
        assert {name: row[name] for name in record["metrics"]} == record["metrics"]
    clients = [{"round": record["round"], **client} for record in records for client in record["clients"]]
    assert run.clients.to_dict("records") == clients
    assert run.settings["data"]["num_clients"] == 10


def test_tables_beside_the_rounds(finished_run: Path) -> None:
    run = read_run(finished_run)
    with open(finished_run / "subnets-val.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = run.subnets("val")
    assert [str(macs) for macs in table["macs"]] == [row["macs"] for row in rows]
    assert table["arch"].tolist() == [row["arch"] for row in rows]
    assert run.ledger == json.loads((finished_run / "ledger.json").read_text())
    classes = [str(digit) for digit in range(10)]
    assert list(run.partition.columns) == ["client", "size", *classes]
    assert (run.partition[classes].sum(axis=1) == run.partition["size"]).all()


def test_search(finished_run: Path) -> None:
    search = read_run(finished_run).search()
    assert search is not None
    assert (search.name, search.cost, search.tier_names) == ("search", "macs", ["small", "large"])
    assert list(search.models) == ["large", "small"]
    for table in ("evaluations", "history", "front", "tiers"):
        assert list(getattr(search, table).columns) == list(SearchFiles(finished_run / "search").columns(table))
    assert search.evaluations["latency_ms"].isna().all()
    assert search.evaluations["latency_ms"].dtype == float
    assert search.evaluations["encoding"].iloc[0] == "-".join(
        ["0"] * 4 + ["4"] * 12
    )  # at these widths all ratios are one
    settings = json.loads((finished_run / "search" / "settings.json").read_text())
    assert search.limits("small") == (None, settings["tiers"][0]["at_most"]["macs"])
    assert search.limits("*") == (None, None)


def test_limits_are_those_of_the_traded_cost(run_folder: Path) -> None:
    path = run_folder / "search" / "settings.json"
    tiers = [{"name": "small", "at_most": {"macs": 9, "bytes": 7}, "above": {"bytes": 3}}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "cost": "bytes", "tiers": tiers}))
    assert read_search(path.parent).limits("small") == (3, 7)


def test_a_run_of_its_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed_everything: 3\n")
    run = read_run(tmp_path)
    assert run.settings == {"seed_everything": 3}
    for table in (run.rounds, run.clients, run.subnets("val"), run.subnets("test"), run.partition):
        assert table.empty
    assert "loss" in run.clients
    assert run.ledger is None
    assert run.search() is None


def test_old_records_have_fewer_keys_and_newer_ones_more(tmp_path: Path) -> None:
    append_round(tmp_path, {"round": 0})
    append_round(tmp_path, {"round": 1, "metrics": {"a": None}, "clients": [{"client": 4, "mood": "good"}]})
    append_round(tmp_path, {"round": 2, "metrics": {"a": 1.5}, "clients": [{"client": 5, "loss": None}]})
    run = read_run(tmp_path)
    assert run.rounds.fillna(-1).to_numpy().tolist() == [[0, -1], [1, -1], [2, 1.5]]
    assert run.clients["client"].tolist() == [4, 5]
    assert run.clients["loss"].dtype == float
    assert "mood" not in run.clients


@pytest.mark.parametrize(("read", "words"), [(read_run, "is not a run"), (read_search, "no search")])
def test_folders_of_something_else_are_refused(tmp_path: Path, read: object, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path)  # type: ignore[operator]
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_newest_run_is_the_one_written_to_last(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        newest_run(tmp_path)
    for place, name in enumerate(["b/version_0", "a/version_0", "c/version_0"]):
        append_round(tmp_path / name, {"round": 0})
        os.utime(tmp_path / name / ROUNDS_FILE, (place, 100 - abs(place - 1)))
    assert newest_run(tmp_path) == tmp_path / "a/version_0"


def test_the_trainings_of_a_fine_tuning_are_no_runs(tmp_path: Path) -> None:
    for place, name in enumerate(["a/version_0", "a/version_0/finetune/runs/small-0", "b/version_0"]):
        append_round(tmp_path / name, {"round": 0})
        os.utime(tmp_path / name / ROUNDS_FILE, (place, 100 - abs(place - 1)))
    os.utime(tmp_path / "a/version_0" / ROUNDS_FILE, (0, 99.5))
    assert newest_run(tmp_path) == tmp_path / "a/version_0"


def test_a_fine_tuning_and_its_clients(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    files = FinetuneFiles(tmp_path / "finetune")
    columns = list(files.columns("tiers"))
    row = dict.fromkeys(columns, 2) | {"tier": "1", "arch": "id", "val_accuracy": None, "val_loss": None}
    files.write("candidates", [row])
    run = read_run(tmp_path)
    assert run.finetuned().empty  # candidates are written as they end, tiers at the end of all
    assert list(run.finetuned().columns) == columns
    assert list(run.finetuned("other").columns) == columns
    sizes = {"test_accuracy": 0.5, "test_loss": 1.5, "macs_per_example": 7, "parameters": 8, "bytes": 9}
    files.write("tiers", [{**row, **sizes}, {**row, **sizes, "tier": "high", "val_accuracy": 0.25}])
    table = run.finetuned()
    assert list(table.columns) == columns
    assert table["tier"].tolist() == ["1", "high"]
    assert table["val_accuracy"].isna().tolist() == [True, False]
    assert table["test_accuracy"].tolist() == [0.5, 0.5]
    assert table["bytes"].dtype == int
    files.write("tiers", [])
    assert run.finetuned().empty
    assert list(run.finetuned().columns) == columns
