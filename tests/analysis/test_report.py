"""The page: complete, by itself, escaped, and true to the run's files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lit_fednas.analysis import read_run
from lit_fednas.analysis.report import write_report
from lit_fednas.cli import main
from lit_fednas.errors import DataError
from lit_fednas.records import ROUNDS_FILE, SearchFiles, write_sequence
from lit_fednas.records.run import write_client_scores
from tests.analysis.made_sequences import by_clients, made_sequence
from tests.analysis.made_suites import made_suite
from tests.analysis.pages import Page

EVIL = '<script>alert("1")</script>&amp;'
SECTIONS = [
    "Training",
    "Subnets",
    "Costs",
    "Clients' data",
    "Search",
    "Search: random",
    "Settings",
]


def test_the_page_has_all_sections_and_needs_nothing_else(run_folder: Path) -> None:
    path = write_report(run_folder)
    assert path == run_folder / "report.html"
    page = Page(path)
    assert page.texts["h2"] == SECTIONS
    assert page.texts["h1"] == ["digits/version_0"]
    text = page.text
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text  # nor may the embedded library load anything
    assert not page.attributes & {"src", "href", "srcset", "onclick", "onload"}
    assert not {"link", "img", "iframe"} & page.count.keys()
    assert page.count["script"] == page.count["style"] == 1
    assert "Left out" not in text
    assert not [path.name for path in run_folder.iterdir() if path.name.endswith(".part")]


def test_the_page_says_what_the_files_say(run_folder: Path) -> None:
    run = read_run(run_folder)
    page = Page(write_report(run_folder))
    cells = page.texts["td"]
    for _, row in run.subnets("val").iterrows():
        assert f"{row['accuracy']:.4f}" in cells
    assert run.ledger is not None
    assert f"{run.ledger['times_less_computation']:.2f}" in cells
    families = [one for figure in page.figures for one in figure["data"] if one.get("name") == "one by one"]
    whole = [run.ledger[f"times_less_{name}"] for name in ("computation", "communication")]
    assert [one["y"][-1] for one in families] == pytest.approx(whole)  # of all that were evaluated
    for _, row in run.clients.groupby("client")["num_examples"].last().reset_index().iterrows():
        assert f"{row['num_examples']:.0f}" in cells
    assert "data.num_clients" not in cells  # the group's name stands above
    assert {"num_clients", "assignment.class_path"} & set(cells) == {"num_clients"}


def test_every_point_of_every_front_can_be_read_out(run_folder: Path) -> None:
    search = read_run(run_folder).search()
    assert search is not None
    (run_folder / "random" / "settings.json").unlink()
    page = Page(write_report(run_folder))
    tips = page.tips
    assert [text.split(",")[0] for text in page.texts["figcaption"] if text[:3] in ("sma", "lar", "All")] == [
        *("small", "large", "All"),  # the fronts
        *("small", "large"),  # the architectures
    ]
    for _, row in search.front.iterrows():
        assert any(tip.endswith("\n" + row["arch"]) and f"{row['accuracy']:.4f}" in tip for tip in tips)
    assert sum(tip.startswith("best of ") for tip in tips) == len(search.tiers)
    partition = read_run(run_folder).partition
    assert sum(tip.startswith("client ") for tip in tips) == int((partition.iloc[:, 2:] > 0).to_numpy().sum())
    assert [tip.split("\n")[0] for tip in tips[:3]] == ["round 0", "round 1", "round 2"]


def test_whatever_a_file_says_is_text(run_folder: Path) -> None:
    """Every place where a name or a text comes from a file."""
    records = [json.loads(line) for line in (run_folder / ROUNDS_FILE).read_text().splitlines()]
    for record in records:
        record["metrics"][f"val/{EVIL}/accuracy"] = 0.5
    (run_folder / ROUNDS_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    for name in ("subnets-val.csv", "partition.csv"):
        text = (run_folder / name).read_text()
        quoted = '"' + EVIL.replace('"', '""') + '"'
        replaced = text.replace("smallest", quoted) if name != "partition.csv" else text.replace("9", quoted, 1)
        (run_folder / name).write_text(replaced)
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
    page = Page(write_report(run_folder))
    assert page.count["script"] == 1
    assert "alert" not in "".join(page.texts["script"])
    for name in ("td", "figcaption", "code"):
        assert EVIL in page.texts[name], name
    assert EVIL in page.names
    assert EVIL[:15] + "…" in page.labels  # a long class name is cut
    assert not page.attributes & {"onerror", "onclick"}
    assert any("alert" in tip for tip in page.tips)


LEFT_OUT = {
    ROUNDS_FILE: ["Training"],
    "subnets-val.csv": ["Subnets"],
    "partition.csv": ["Clients' data"],
    "config.yaml": ["Settings"],
    "search/settings.json": ["Search"],
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_section_without_its_file_is_one_line(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    page = Page(write_report(run_folder))
    missing = [line for line in page.texts["p"] if line.startswith("Left out")]
    assert page.texts["h2"] == [title for title in SECTIONS if title not in LEFT_OUT[name]]
    assert [re.sub(r"Left out: (.*), because.*", r"\1", line) for line in missing] == LEFT_OUT[name]


ARCHITECTURE = "search/tiers/small/architecture.json"
RECORD = '{"round": 9, '
DAMAGED = [
    *((ROUNDS_FILE, text) for text in (RECORD + '"clients": 5}\n', RECORD + '"metrics": {"a": [1]}}\n')),
    *((ROUNDS_FILE, text) for text in ('{"round": "one"}\n', RECORD + '"clients": [{"client": 1, "loss": "x"}]}\n')),
    *(("config.yaml", text) for text in ("a: [", "- 1", "words", "model: words", "\0")),
    *(("ledger.json", text) for text in ("", "{", "[1]", "5", "{}", '{"total": 5, "independent": {"a": 1}}')),
    *(("subnets-val.csv", text) for text in ("", "a,b\n1,2\n", "subnet,arch,split,accuracy\na,a,val,high\n")),
    *(("partition.csv", text) for text in ("", 'client,size\n"', "client,size,a,b\n0,1,many,3\n")),
    *(("search/settings.json", text) for text in ("", "[]")),
    *(("search/evaluations.csv", text) for text in ("number,accuracy\nx,1\n", "number,accuracy\n1,x\n")),
    *((ARCHITECTURE, text) for text in ("", "{}", "[]", '{"tier": "small", "more": 1}')),
    *(("suite.json", text) for text in ("{", '{"models": 5}', '{"models": [{"number": 0}]}')),
]


@pytest.mark.parametrize(("name", "text"), DAMAGED)
def test_a_damaged_file_is_one_line(run_folder: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    capsys.readouterr()
    assert main(["report", str(run_folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lit-fednas: {path}: is damaged (")
    assert line.endswith("; restore it, or delete it to do without it")
    assert not (run_folder / "report.html").exists()
    path.write_bytes(b"\xff\xfe\n")
    assert main(["report", str(run_folder)]) == 2
    assert str(path) in capsys.readouterr().err


def clients(folder: Path, accuracies: list[float], tier: str = "small") -> None:
    """Tests a client for each accuracy."""
    folder.mkdir(exist_ok=True)
    rows = [
        {"client": client, "tier": tier, "num_examples": 4, "accuracy": accuracy, "loss": 1.0}
        for client, accuracy in enumerate(accuracies)
    ]
    write_client_scores(folder, rows)


def test_fairness_of_every_search_and_fine_tuning(run_folder: Path) -> None:
    assert "Fairness" not in Page(write_report(run_folder)).texts["h2"]
    clients(run_folder / "finetune", [0.75, 0.5, 0.25], EVIL)
    page = Page(write_report(run_folder))
    assert page.texts["h2"] == [*SECTIONS[:-1], "Fairness", "Settings"]
    assert EVIL in page.texts["td"]
    assert page.count["script"] == 1
    assert "search" not in page.texts["td"]
    clients(run_folder / "search", [0.5, 1.0, 0.0, 0.5])
    clients(run_folder / "again", [1.0])
    page = Page(write_report(run_folder))
    cells = page.texts["td"]
    start = cells.index("search")
    assert cells[start : start + 7] == ["search", "all", "4", "0.5000", "0.3536", "0.2500", "0.0000"]
    assert cells[start + 14 : start + 21] == ["finetune", "all", "3", "0.5000", "0.2041", "0.2500", "0.2500"]
    assert cells.index("again") == start + 28
    tips = [tip.splitlines() for tip in page.tips if tip.startswith("client ") and "finetune" in tip]
    assert tips == [
        ["client 1", "search: 0", "finetune: 0.25", "again: 1"],
        ["client 2", "search: 0.5", "finetune: 0.5"],
        ["client 3", "search: 0.5", "finetune: 0.75"],
    ]
    clients(run_folder, [1.0])
    cells = Page(write_report(run_folder)).texts["td"]
    start = cells.index("run")
    assert cells[start : start + 4] == ["run", "all", "1", "1.0000"]
    assert cells[start + 14] == "search"


def suite_run(folder: Path, cells: str = "conv1 8, head", rounds: int = 2) -> Path:
    """Three models; in round 0 one client trains model 0, in each later round clients of models 0 and 1 do."""
    clients = [
        {"client": place, "arch": f"model: {place}", "loss": 1.0 + place, "num_seen": 10, "num_steps": 1}
        for place in (0, 1)
    ]
    clients = [{**one, "num_examples": 10, "seconds": 0.1, "reason": ""} for one in clients]
    run = made_suite(folder, rounds=[clients[:1], *[clients] * (rounds - 1)], complete=False)
    suite = json.loads((run.folder / "suite.json").read_text())
    suite["models"][1]["cells"] = cells
    suite["models"][1]["activeness"] = {cells: 0.5}
    suite["models"][1]["steps"] = [{"widen": cells}]
    (run.folder / "suite.json").write_text(json.dumps(suite))
    return run.folder


def test_models_of_a_suite(run_folder: Path, tmp_path: Path) -> None:
    assert "Models" not in Page(write_report(run_folder)).texts["h2"]
    folder = suite_run(tmp_path / "grown" / "version_0")
    page = Page(write_report(folder))
    assert page.texts["h2"] == ["Training", "Models", "Costs"]
    assert "3 models; training ended before the largest." in page.texts["p"]
    cells = page.texts["td"]
    start = cells.index("round 1") - 2
    assert cells[start : start + 9] == ["1", "0", "round 1", "2.5 k", "250", "1 kB", "1", "1", "0.002"]
    nodes = [tip.splitlines() for tip in page.tips if "activeness" in tip or "initial model" in tip]
    assert nodes == [
        ["model 0, start: initial model", "1 k MACs, 100 parameters", "conv1 8, head"],
        [
            "model 1, round 1: widen conv1 8, head",
            "2.5 k MACs, 250 parameters",
            "conv1 8, head",
            "activeness of model 0: conv1 8, head 0.5",
        ],
        [
            "model 2, round 2: widen conv1; deepen conv2",
            "6 M MACs, 600 k parameters",
            "conv1 10, head",
            "activeness of model 1: conv1 0.5, conv2 0.25",
        ],
    ]
    losses = [tip.splitlines() for tip in page.tips if tip.startswith("round ") and "model" in tip]
    assert losses == [
        ["round 0", "model 0: 1", "all: 1"],
        ["round 1", "model 0: 1", "model 1: 2", "all: 1.5", "model 1 is added"],
        ["round 2", "model 2 is added"],
        ["round 0", "model 0: 1", "model 1: 0"],
        ["round 1", "model 0: 1", "model 1: 1", "model 1 is added"],
        ["round 2", "model 2 is added"],
    ]
    assert {"+1", "+2", "start", "round 1", "1 k MACs, 100 par.", "initial model"} <= set(page.labels)


def test_when_a_suite_converged(tmp_path: Path) -> None:
    folder = suite_run(tmp_path / "run", rounds=4)
    (folder / "config.yaml").write_text("transform_on_convergence: {init_args: {threshold: 0.25}}\n")
    found = [{}, {"doc": 0.5, "doc_error": 0.125}, {"doc": None, "doc_error": None}, {"doc": 0.125, "doc_error": 0.0}]
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record, metrics in zip(records, found, strict=True):
        record["metrics"] = {f"transform/{name}": value for name, value in metrics.items()}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Page(write_report(folder))
    told = [tip.splitlines() for tip in page.tips if "degree" in tip]
    assert told == [
        ["round 1", "degree of convergence: 0.5", "threshold: 0.25", "model 1 is added"],
        ["round 3", "degree of convergence: 0.125", "threshold: 0.25"],
    ]


def test_an_event_is_told_in_a_long_run(tmp_path: Path) -> None:
    page = Page(write_report(suite_run(tmp_path / "run", rounds=700)))
    told = [tip for tip in page.tips if "model 1 is added" in tip]
    assert [tip.splitlines()[0] for tip in told] == ["round 1", "round 1"]


def test_what_a_suite_says_is_text(tmp_path: Path) -> None:
    page = Page(write_report(suite_run(tmp_path / "run", EVIL)))
    assert "script" not in page.count or page.count["script"] == 1
    assert EVIL in page.texts["code"]
    assert any(EVIL in tip for tip in page.tips)


def test_a_run_of_its_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed_everything: 0\n")
    page = Page(write_report(tmp_path / "run", tmp_path / "out" / "page.html"))
    assert page.texts["h2"] == ["Settings"]
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_search_of_the_smallest_size(run_folder: Path) -> None:
    """One architecture, one generation, equal costs: axes without any length."""
    files = SearchFiles(run_folder / "search")
    for table in ("evaluations", "history", "front", "tiers"):
        files.write(table, files.rows(table)[:1])
    assert "nan" not in Page(write_report(run_folder)).text.lower()


def test_command(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder)]) == 0
    assert (run_folder / "report.html").exists()
    assert main(["report", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(DataError):
        write_report(tmp_path / "none")


def test_models_of_a_pruned_sequence(run_folder: Path, tmp_path: Path) -> None:
    assert "Pruned models" not in Page(write_report(run_folder)).texts["h2"]
    page = Page(write_report(made_sequence(tmp_path / "run").folder))
    assert page.texts["h2"] == ["Pruned models", "Costs"]
    (summary,) = [text for text in page.texts["p"] if text.startswith("3 iterations")]
    said = "down to 40% of the initial network's MACs; complete. The initial model took 0.5 MACs, 7e-07 MB up and"
    assert summary == f"3 iterations, {said} 9e-07 MB down per client."
    cells = page.texts["td"]
    initial = ["0", "–", "–", "–", "100%", "1 k", "100", "400 B", "0.7500", "0", "0", "–", "–", "–"]
    start = cells.index("conv2") - 1
    assert cells[start - 14 : start] == initial
    model = ["1", "conv2", "1", "770", "75%", "750", "75", "300 B", "0.7000", "2", "2", "100 M", "0.1", "1"]
    assert cells[start : start + 14] == model
    start = cells.index("round 1: conv1") - 4
    assert cells[start : start + 5] == ["1", "conv2", "2", "0.02", "round 1: conv1"]
    front = [tip.splitlines() for tip in page.tips if tip.startswith("model ")]
    assert front == [  # model 2 is dominated by model 3
        ["model 3, conv2 lost filters", "accuracy 0.6250", "400 (40%)"],
        ["model 1, conv2 lost filters", "accuracy 0.7000", "750 (75%)"],
        ["model 0", "accuracy 0.7500", "1 k (100%)"],
    ]
    candidates = [tip.splitlines() for tip in page.tips if tip.startswith("round of the iteration 1\n")]
    assert candidates == [["round of the iteration 1", f"conv2: {x}", "conv1: 0.25"] for x in (0.7, 0.625)]
    captions = [text for text in page.texts["figcaption"] if text.startswith("Candidates")]
    assert captions == [f"Candidates of iteration {number}: conv2 is selected" for number in (1, 3)]
    costs = [tip.splitlines() for tip in page.tips if tip.startswith("iteration 2")]
    assert costs == [["iteration 2", "up: 0.2", "down: 2"], ["iteration 2", "MACs: 200"]]
    kept = [tip for tip in page.tips if re.fullmatch(r"\d+ of \d+ \(.*\)", tip)]
    assert kept[-3:] == ["8 of 8 (100%)", "4 of 16 (25%)", "10 of 20 (50%)"]
    assert len(kept) == 4 * 3
    assert page.texts["b"][-3:] == ["8", "4", "10"]
    bars = re.findall(r"width:([\d.]+)%", page.text)
    assert bars[-3:] == ["100", "25", "50"]


def test_tests_of_all_clients_are_beside_what_decides(tmp_path: Path) -> None:
    run = by_clients(made_sequence(tmp_path / "run"), {1: (0.61, 0.66), 0: (0.72, None)})
    page = Page(write_report(run.folder))
    assert page.texts["th"][8:12] == ["decides", "test", "test, fine-tuned", "rounds"]
    cells = page.texts["td"]
    start = cells.index("conv2") - 1
    assert cells[start - 8 : start - 3] == ["0.7500", "0.7200", "–", "0", "0"]
    assert cells[start + 8 : start + 12] == ["0.7000", "0.6100", "0.6600", "2"]


def test_a_sequence_that_has_just_begun(tmp_path: Path) -> None:
    run = made_sequence(tmp_path / "run", [("", (8, 16, 20), 1000, None)], complete=False)
    (run.folder / "config.yaml").write_text("seed_everything: 0\n")
    text = "0 iterations, down to 100% of the initial network's MACs; training ended before the last."
    page = Page(write_report(run.folder))
    assert any(said.startswith(text) for said in page.texts["p"])
    assert not any(caption.startswith(("Candidates", "Accuracy on")) for caption in page.texts.get("figcaption", []))
    sequence = json.loads((run.folder / "sequence.json").read_text())
    costs = dict.fromkeys(sequence["models"][0]["costs"], 0)
    sequence["models"][0]["costs"] = costs
    sequence["under_way"] = {"number": 1, "costs": costs}
    write_sequence(run.folder, sequence)
    page = Page(write_report(run.folder))
    assert "0 iterations, down to 100% of the initial network's MACs; iteration 1 is under way." in page.texts["p"]


def test_a_model_that_nobody_tested_is_in_the_table_only(tmp_path: Path) -> None:
    steps = [("", (8, 16, 20), 1000, 0.75), ("conv1", (6, 16, 20), 740, 0.6), ("conv2", (6, 8, 20), 480, None)]
    page = Page(write_report(made_sequence(tmp_path / "run", steps).folder))
    start = page.texts["td"].index("conv2") - 1
    assert page.texts["td"][start + 8 : start + 10] == ["–", "3"]
    assert [tip.splitlines()[0] for tip in page.tips if tip.startswith("model ")] == [
        "model 1, conv1 lost filters",
        "model 0",
    ]
    assert "nan" not in page.text.lower()


def test_what_a_sequence_says_is_text(tmp_path: Path) -> None:
    run = made_sequence(tmp_path / "run")
    sequence = json.loads((run.folder / "sequence.json").read_text())
    sequence["units"] = {EVIL: ["conv1.out"]}
    for model in sequence["models"][1:]:
        model["unit"] = model["candidates"][0]["unit"] = model["candidates"][1]["unit"] = EVIL
    write_sequence(run.folder, sequence)
    page = Page(write_report(run.folder))
    assert page.count["script"] == 1
    assert EVIL in page.texts["td"]
    assert EVIL in page.texts["th"]
    assert any(EVIL in tip for tip in page.tips)
