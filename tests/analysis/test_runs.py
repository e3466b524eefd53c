"""A run's folder as tables, against its files and values by hand, and without files."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.analysis import newest_run, read_run, read_search
from lit_fednas.analysis.charts import stairs
from lit_fednas.analysis.comparison import comparison_table
from lit_fednas.analysis.networks import Result, methods_of, networks
from lit_fednas.analysis.report import write_report
from lit_fednas.analysis.runs import independent_costs
from lit_fednas.records import FinetuneFiles, SearchFiles
from lit_fednas.records.run import ROUNDS_FILE, append_round
from tests.analysis.made_runs import CLIENT
from tests.analysis.pages import Page


def test_tables_agree_with_the_files(finished_run: Path) -> None:
    run = read_run(finished_run)
    records = [json.loads(line) for line in (finished_run / ROUNDS_FILE).read_text().splitlines()]
    assert run.name == "digits/version_0"
    assert run.rounds["round"].tolist() == [0, 1, 2]
    for record, (_, row) in zip(records, run.rounds.iterrows(), strict=True):
        assert {name: row[name] for name in record["metrics"]} == record["metrics"]
    clients = [{"round": record["round"], **client} for record in records for client in record["clients"]]
    assert run.clients.to_dict("records") == clients
    assert run.settings["data"]["num_clients"] == 10
    with open(finished_run / "subnets-val.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = run.subnets("val")
    assert [str(macs) for macs in table["macs"]] == [row["macs"] for row in rows]
    assert table["arch"].tolist() == [row["arch"] for row in rows]
    classes = [str(digit) for digit in range(10)]
    assert list(run.partition.columns) == ["client", "size", *classes]
    assert (run.partition[classes].sum(axis=1) == run.partition["size"]).all()
    assert run.logged("val/largest/accuracy").tolist() == run.rounds["val/largest/accuracy"].tolist()


def test_costs_agree_with_those_that_the_run_counted(finished_run: Path) -> None:
    run = read_run(finished_run)
    ledger = json.loads((finished_run / "ledger.json").read_text())
    assert run.ledger == ledger
    total = ledger["total"]
    for name in ("macs", "bytes"):
        assert run.spent[f"spent_{name}"].tolist() == pytest.approx(run.rounds[f"cost/total_{name}"].tolist(), rel=1e-6)
    table = independent_costs(ledger).set_index("training")
    assert table.index.tolist() == ["this run", *ledger["independent"], "one by one"]
    assert table.loc["this run"].tolist() == [total["macs"], total["bytes_down"] + total["bytes_up"], 1, 1]
    assert table.loc["one by one", "times_macs"] == pytest.approx(ledger["times_less_computation"])
    assert table.loc["one by one", "times_bytes"] == pytest.approx(ledger["times_less_communication"])
    table = comparison_table(methods_of({"x": [finished_run]}), {"*": {}})
    assert table["spent_macs"].tolist() == [total["macs"]]
    assert table["spent_bytes"].tolist() == [total["bytes_down"] + total["bytes_up"]]
    assert table["rounds"].tolist() == [3]
    assert table["val"].item() == networks(Result(run))["val"].max()


def test_search(finished_run: Path, run_folder: Path) -> None:
    search = read_run(finished_run).search()
    assert search is not None
    assert (search.name, search.cost, search.tier_names) == ("search", "macs", ["small", "large"])
    assert list(search.models) == ["large", "small"]
    for table in ("evaluations", "history", "front", "tiers"):
        assert list(getattr(search, table).columns) == list(SearchFiles(finished_run / "search").columns(table))
    assert search.evaluations["latency_ms"].isna().all()
    path = run_folder / "search" / "settings.json"
    settings = json.loads(path.read_text())
    assert search.limits("small") == (None, settings["tiers"][0]["at_most"]["macs"])
    assert search.limits("*") == (None, None)
    tiers = [{"name": "small", "at_most": {"macs": 9, "bytes": 7}, "above": {"bytes": 3}}]
    path.write_text(json.dumps({**settings, "cost": "bytes", "tiers": tiers}))
    assert read_search(path.parent).limits("small") == (3, 7)  # the limits of the traded cost


def test_a_run_of_its_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed_everything: 3\nckpt_path: null\n")
    run = read_run(tmp_path)
    assert run.settings == {"seed_everything": 3, "ckpt_path": None}
    assert all(table.empty for table in (run.rounds, run.clients, run.subnets("val"), run.partition))
    assert run.ledger is run.search() is None
    page = Page(write_report(tmp_path, tmp_path / "out" / "page.html"))
    assert page.texts["h2"] == ["Settings"]
    assert not (tmp_path / "report.html").exists()


def test_newer_records_have_more_keys(tmp_path: Path) -> None:
    append_round(tmp_path, {"round": 0, "metrics": {}, "clients": []})
    metrics = {"val/a/accuracy": None, "val/mean/accuracy": 0.5}
    append_round(tmp_path, {"round": 1, "metrics": metrics, "clients": [{**CLIENT, "client": 4, "mood": "good"}]})
    append_round(tmp_path, {"round": 2, "metrics": {"val/a/accuracy": 1.5}, "clients": [CLIENT | {"client": 5}]})
    run = read_run(tmp_path)
    assert run.rounds.fillna(-1).to_numpy().tolist() == [[0, -1, -1], [1, -1, 0.5], [2, 1.5, -1]]
    assert run.clients["client"].tolist() == [4, 5]
    assert run.clients["loss"].dtype == float
    assert "mood" not in run.clients
    assert run.logged("val/a/accuracy").to_dict() == {2: 1.5}
    assert run.logged("val/nobody/accuracy").empty


def test_the_newest_run_is_the_one_written_to_last(tmp_path: Path) -> None:
    """The runs of a fine-tuning do not count."""
    times = {"b/version_0": 99, "a/version_0": 99.5, "a/version_0/finetune/runs/small-0": 200, "c/version_0": 99.2}
    for number, (name, time) in enumerate(times.items()):
        append_round(tmp_path / name, {"round": 0, "metrics": {}, "clients": []})
        os.utime(tmp_path / name / ROUNDS_FILE, (300 - number, time))
    assert newest_run(tmp_path) == tmp_path / "a/version_0"


def test_a_fine_tuning(tmp_path: Path) -> None:
    """Candidates are written when they end, tiers at the end of the fine-tuning."""
    (tmp_path / "config.yaml").write_text("ckpt_path: null")
    files = FinetuneFiles(tmp_path / "finetune")
    columns = list(files.columns("tiers"))
    row = dict.fromkeys(columns, 2) | {"tier": "1", "arch": "id", "val_accuracy": None, "test_accuracy": 0.5}
    files.write("candidates", [row])
    run = read_run(tmp_path)
    files.write("tiers", [row, {**row, "tier": "high", "val_accuracy": 0.25}])
    table = run.finetuned()
    assert table["tier"].tolist() == ["1", "high"]
    assert table["val_accuracy"].isna().tolist() == [True, False]
    assert (table["bytes"].dtype, run.finetuned("other").empty) == (int, True)
    assert list(table.columns) == list(run.finetuned("other").columns) == columns


def test_stairs_by_hand() -> None:
    first = pd.Series({2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4})
    stacked = stairs([first, pd.Series({3: 0.5, 7: 0.7})])
    assert stacked.index.tolist() == [3, 4, 6, 7]  # begins with the last curve and ends with the first
    assert stacked.to_numpy().tolist() == [[0.1, 0.5], [0.2, 0.5], [0.3, 0.5], [0.3, 0.7]]
    apart = stairs([pd.Series({5: 0.1}), pd.Series({8: 0.3})])  # one ends before the other begins
    assert apart.agg("mean", axis=1).to_dict() == {8: pytest.approx(0.2)}
