"""The page of a run: complete, self-contained, escaped, and equal to the run's files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lit_fednas.analysis import read_run
from lit_fednas.analysis.report import write_report
from lit_fednas.cli import main
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import ROUNDS_FILE, SEQUENCE_FILE
from tests.analysis.made_runs import by_clients, made_sequence, made_suite
from tests.analysis.pages import Page
from tests.analysis.test_fairness import write

EVIL = '<script>alert("1")</script>&amp;'
BEST = ["best of small", "best of large"]
SECTIONS = ["Training", "Subnets", "Costs", "Clients' data", "Search", "Search: random", "Settings"]


def cells_from(page: Page, text: str, count: int, offset: int = 0) -> list[str]:
    """Returns cells of the page's tables, from ``offset`` cells before the first with a text."""
    start = page.texts["td"].index(text) - offset
    return page.texts["td"][start : start + count]


def tips_of(page: Page, start: str) -> list[list[str]]:
    return [tip.splitlines() for tip in page.tips if tip.startswith(start)]


def test_the_command_writes_a_page_that_needs_nothing_else(run_folder: Path, tmp_path: Path, refused: Any) -> None:
    assert main(["report", str(run_folder)]) == 0
    page = Page(run_folder / "report.html")
    assert page.texts["h2"] == SECTIONS
    assert page.texts["h1"] == ["digits/version_0"]
    assert not re.search(r"https?:|@import|url\((?!#)", page.text)
    assert "default-src 'none'" in page.text
    assert not page.attributes & {"src", "href", "srcset", "onclick", "onload"}
    assert not {"link", "img", "iframe", "script"} & page.count.keys()
    assert page.count["style"] == 1
    assert len(page.text) < 300_000  # the run has two searches
    assert "is not a run" in refused("report", str(tmp_path / "none"))


def test_the_page_says_what_the_files_say(finished_run: Path, finished_page: Page) -> None:
    run, page = read_run(finished_run), finished_page
    cells = page.texts["td"]
    assert {f"{100 * accuracy:.1f}" for accuracy in run.subnets("val")["accuracy"]} <= set(cells)
    assert run.ledger is not None
    tiles = page.text.partition('<div class="tiles">')[2].partition("</header>")[0]
    assert re.findall("<small>(.*?)</small>", tiles) == ["rounds", "best evaluated subnet", *BEST]
    for name in ("computation", "communication"):  # relative to training each evaluated subnet alone
        assert f"{run.ledger[f'times_less_{name}']:.2f}" in cells

    assert [tip[0] for tip in tips_of(page, "client ")] == [f"client {client}" for client in run.partition["client"]]
    for tip, counts in zip(tips_of(page, "client "), run.partition.iloc[:, 2:].to_numpy(), strict=True):
        assert tip[1:] == [f"{label}: {count}" for label, count in enumerate(counts) if count]

    for method, name in (("NSGA2", "search"), ("RandomSearch", "random")):
        search = run.search(name)
        assert search is not None
        assert f"{method} evaluated {len(search.evaluations)} architectures on the validation data." in page.texts["p"]
        assert {f"{100 * accuracy:.1f}" for accuracy in search.tiers["val_accuracy"]} <= set(cells)
        for _, row in search.front.iterrows():
            assert any(tip.endswith("\n" + row["arch"]) and f"{row['accuracy']:.1%}" in tip for tip in page.tips)


def test_texts_of_files_are_escaped(run_folder: Path, tmp_path: Path) -> None:
    """Every name and text from a file is tried."""
    records = [json.loads(line) for line in (run_folder / ROUNDS_FILE).read_text().splitlines()]
    for record in records:
        record["metrics"][f"val/{EVIL}/accuracy"] = 0.5
    (run_folder / ROUNDS_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    quoted = '"' + EVIL.replace('"', '""') + '"'
    for name, word, times in (("subnets-val.csv", "smallest", -1), ("partition.csv", "9", 1)):
        (run_folder / name).write_text((run_folder / name).read_text().replace(word, quoted, times))
    config = run_folder / "config.yaml"
    config.write_text(config.read_text() + f"note: '{EVIL}'\n'{EVIL}': 1\n")
    ledger = json.loads((run_folder / "ledger.json").read_text())
    ledger["independent"][EVIL] = ledger["independent"].pop("largest")
    (run_folder / "ledger.json").write_text(json.dumps(ledger))
    files = SearchFiles(run_folder / "search")
    settings = files.settings()
    settings["tiers"][0]["name"] = EVIL
    files.write_settings(settings)
    for table in ("history", "front", "tiers"):
        rows = [{**row, "tier": EVIL} if row["tier"] == "small" else row for row in files.rows(table)]
        files.write(table, [{**row, "arch": EVIL} if "arch" in row else row for row in rows])
    page = Page(write_report(run_folder.rename(run_folder.with_name("<script>"))))
    assert page.texts["h1"] == ["digits/<script>"]
    for name in ("td", "code"):
        assert EVIL in page.texts[name], name
    assert any(EVIL in title for title in page.texts["figcaption"])
    assert page.texts["text"].count(EVIL) > 1  # a line and a class
    pruned = made_sequence(tmp_path / "pruned")
    sequence = json.loads((pruned.folder / "sequence.json").read_text())
    sequence["units"] = {EVIL: ["conv1.out"]}
    for model in sequence["models"][1:]:
        model["unit"] = model["candidates"][0]["unit"] = model["candidates"][1]["unit"] = EVIL
    replace_json(pruned.folder / SEQUENCE_FILE, sequence)
    of_pruned, of_grown = Page(write_report(pruned.folder)), Page(write_report(suite_run(tmp_path / "grown", EVIL)))
    assert EVIL in of_pruned.texts["td"]
    assert EVIL in of_pruned.texts["th"]
    assert EVIL in of_grown.texts["code"]
    for report in (page, of_pruned, of_grown):
        assert "script" not in report.count
        assert not report.attributes & {"onerror", "onclick"}
    assert all(any("alert" in tip for tip in charts.tips) for charts in (page, of_pruned))


@pytest.mark.parametrize(
    ("removed", "missing_titles"),
    [
        ([ROUNDS_FILE, "partition.csv", "search/settings.json"], ["Training", "Clients' data", "Search"]),
        (["config.yaml", "subnets-val.csv"], ["Subnets", "Settings"]),
    ],
)
def test_a_section_without_its_file_is_one_line(
    run_folder: Path, removed: Sequence[str], missing_titles: Sequence[str]
) -> None:
    """This holds for a search, too, if there is another one."""
    for name in removed:
        (run_folder / name).unlink()
    page = Page(write_report(run_folder))
    missing = [line for line in page.texts["p"] if line.startswith("Left out")]
    assert page.texts["h2"] == [title for title in SECTIONS if title not in missing_titles]
    assert [re.sub(r"Left out: (.*), because.*", r"\1", line) for line in missing] == missing_titles


MODEL = {"tier": "small", "arch": "a", "encoding": [], "supernet": "A", "input_shape": [1], "num_classes": 2}
MODEL |= {"recalibrated": False, "costs": {}, "metrics": {}}
DAMAGED = [
    (ROUNDS_FILE, '{"round": 9, "clients": [{"client": 1, "loss": "x"}]}\n'),
    ("config.yaml", "model: words"),
    ("ledger.json", '{"total": 5, "independent": {"a": 1}}'),
    ("subnets-val.csv", "subnet,arch,split,accuracy\na,a,val,high\n"),
    ("partition.csv", "client,size,a,b\n0,1,many,3\n"),
    ("subnets-val.csv", "subnet,arch,split,accuracy,loss,macs,parameters,bytes\na\n"),
    ("search/settings.json", '{"metric": "accuray", "tiers": [], "method": {}}'),
    ("search/evaluations.csv", "number,accuracy\n1,x\n"),
    ("search/tiers/small/architecture.json", '{"tier": "small", "more": 1}'),
    ("search/tiers/small/architecture.json", json.dumps({**MODEL, "stages": [[["a", "b"]]]})),
    ("suite.json", '{"models": [{"number": 0}]}'),
    (ROUNDS_FILE, '{"round": 0, "metrics": {"val/a/accuracy": NaN}}\n'),
    (ROUNDS_FILE, '{"round": 0, "round": 1}\n'),
    ("ledger.json", "[" * 100_000),
    ("ledger.json", '{"total": {"macs": -1, "bytes_down": 0, "bytes_up": 0}}'),
    ("inputs.json", '{"task": "Classification", "class_names": "abc"}'),
    ("partition.csv", "client,size,a,b\n0,3,1,2\n0,3,1,2\n"),
    ("partition.csv", "client,size,a,b\n0,3,1,2"),
    ("partition.csv", "client,size,a,a\n0,3,1,2\n"),
    ("search/settings.json", '{"metric": "accuracy", "tiers": [{"name": 3, "at_most": {}}]}'),
    ("search/evaluations.csv", "\0\0\0"),
    ("search/tiers.csv", "tier,arch\nsmall,a\n"),
    (ROUNDS_FILE, '{"round": 0, "metrics": {}, "clients": [{"client": 1}]}\n'),
    ("config.yaml", "seed_everything: 0\n"),
    ("inputs.json", "{}"),
]
#: Files with a lost or changed line or word: the pattern, its replacement, and the fault.
CHANGED = [
    (ROUNDS_FILE, r"(?s)\A.*?\n(.*?\n).*", r"\1", "has 2 of 3 rounds"),
    (ROUNDS_FILE, r"(?s)\A(.*?\n).*?\n", r"\1", "line 2 is of round 2, after 0"),
    (ROUNDS_FILE, '"status":"ok"', '"status":"on"', "line 1 is not the record of a round"),
    ("search/evaluations.csv", r"(?m)^3,.*\n", "", "its rows are not numbered from 0"),
    ("search/evaluations.csv", r"(?m)(^3,.*),.*$", r"\1", "row 4 has 9 cells of 10"),
    ("search/settings.json", '"num_examples": 64', '"num_examples": "many"', "content.num_examples"),
    ("search/tiers.csv", r"(?m)(^small.*),\d+(,[^,]*,\d+,[^,]*)$", r"\1,\2", "a row has no activation_bytes"),
]


@pytest.mark.parametrize(("name", "text"), DAMAGED)
def test_a_damaged_file_is_one_line(run_folder: Path, name: str, text: str, refused: Any) -> None:
    path = run_folder / name
    path.write_text(text)
    line = refused("report", str(run_folder))
    assert re.match(rf"lit-fednas: {path}: (is damaged|line 1 is not the record of a round) \(.*\); restore it", line)
    assert not (run_folder / "report.html").exists()


@pytest.mark.parametrize(("name", "pattern", "text", "fault"), CHANGED)
def test_a_lost_line_or_word_is_one_line(
    run_folder: Path, name: str, pattern: str, text: str, fault: str, refused: Any
) -> None:
    path = run_folder / name
    original = path.read_text()
    path.write_text(re.sub(pattern, text, original, count=1))
    assert path.read_text() != original
    line = refused("report", str(run_folder))
    assert line.startswith(f"lit-fednas: {path}: ")
    assert fault in line


def test_fairness_of_every_search_and_fine_tuning(run_folder: Path, finished_page: Page) -> None:
    tested = {"finetune": [0.75, 0.5, 0.25], "search": [0.5, 1.0, 0.0, 0.5], "again": [1.0], "": [1.0]}
    for name, accuracies in tested.items():
        write(run_folder / name, {EVIL: accuracies})
    assert "Fairness" not in finished_page.texts["h2"]
    page = Page(write_report(run_folder))
    assert page.texts["h2"] == [*SECTIONS[:-1], "Fairness", "Settings"]
    assert "script" not in page.count
    cells = cells_from(page, "run", 56)
    assert cells[:4] == ["run", "all", "1", "100.0"]
    assert cells[14:21] == ["search", "all", "4", "50.0", "35.4", "0.0", "25.0"]
    assert cells[28:36] == ["finetune", "all", "3", "50.0", "20.4", "25.0", "25.0", "finetune"]
    assert (cells[36], cells[42]) == (EVIL, "again")
    assert ["client 1", "run: 100.0", "search: 0.0", "finetune: 25.0", "again: 100.0"] in tips_of(page, "client 1")


def suite_run(folder: Path, cells: str = "conv1 8, head", rounds: int = 2) -> Path:
    """Writes a run with three models; a client trains model 0, from round 1 on another one model 1."""
    fitted = {"num_units": 10, "num_steps": 1, "num_examples": 10, "seconds": 0.1, "reason": ""}
    clients = [{"client": number, "arch": f"model: {number}", "loss": 1.0 + number, **fitted} for number in (0, 1)]
    run = made_suite(folder, rounds=[clients[:1], *[clients] * (rounds - 1)], complete=False)
    suite = json.loads((run.folder / "suite.json").read_text())
    suite["models"][1] |= {"cells": cells, "activeness": {cells: 0.5}, "steps": [{"widen": cells}]}
    (run.folder / "suite.json").write_text(json.dumps(suite))
    return run.folder


def test_models_of_a_suite(finished_page: Page, tmp_path: Path) -> None:
    assert "Models" not in finished_page.texts["h2"]
    page = Page(write_report(suite_run(tmp_path / "grown" / "version_0")))
    assert page.texts["h2"] == ["Training", "Models", "Costs"]
    assert "3 models; training ended before the largest." in page.texts["p"]
    row = ["1", "0", "after 2 rounds", "2.5 k", "250", "1 kB", "1", "1", "0.0020"]
    assert cells_from(page, "after 2 rounds", 9, offset=2) == row


def test_models_of_a_pruned_sequence(finished_page: Page, tmp_path: Path) -> None:
    assert "Pruned models" not in finished_page.texts["h2"]
    page = Page(write_report(made_sequence(tmp_path / "run").folder))
    assert page.texts["h2"] == ["Pruned models", "Costs"]
    (summary,) = [text for text in page.texts["p"] if text.startswith("3 iterations")]
    middle = "down to 40% of the initial network's MACs; complete. The initial model took 0.5 MACs, 0.7 B up and"
    assert summary == f"3 iterations, {middle} 0.9 B down per client."
    row = ["1", "conv2", "2", "770", "75%", "750", "75", "300 B", "70.0", "2", "2", "100 M", "100 kB", "1 MB"]
    assert cells_from(page, "conv2", 14, offset=1) == row
    captions = [text for text in page.texts["figcaption"] if text.startswith("Candidates")]
    assert captions == [f"Candidates of iteration {number}: conv2 is selected" for number in (1, 3)]


def test_models_with_and_without_tests_by_all_clients(tmp_path: Path) -> None:
    run = by_clients(made_sequence(tmp_path / "all"), {1: (0.61, 0.66), 0: (0.72, None)})
    page = Page(write_report(run.folder))
    cells = cells_from(page, "conv2", 32, offset=17)
    assert cells[8:13] == ["75.0", "72.0", "–", "0", "0"]
    assert cells[24:28] == ["70.0", "61.0", "66.0", "2"]
    steps = [("", (8, 16, 20), 1000, 0.75), ("conv1", (6, 16, 20), 740, 0.6), ("conv2", (6, 8, 20), 480, None)]
    page = Page(write_report(made_sequence(tmp_path / "nobody", steps).folder))
    assert cells_from(page, "conv2", 10, offset=1)[8:] == ["–", "3"]
    assert "nan" not in page.text.lower()
