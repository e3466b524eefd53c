"""From folders of runs to FedNAS' tables and figures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.records import write_client_scores
from tests.analysis.made_runs import made_run, unpadded
from tests.analysis.made_sequences import Steps, by_clients, finetuned, made_sequence
from tests.scripts.conftest import load

SECOND: Steps = [("", (8, 16, 20), 1000, 0.7), ("conv1", (4, 16, 20), 500, 0.5)]


@pytest.fixture(scope="module")
def script():
    return load("fednas_tables")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    finetuned(made_sequence(tmp_path / "a0" / "version_0"), {"s": (3, 0.7, 0.68)}, "again")
    made_sequence(tmp_path / "a1" / "version_0", cost=3_000_000)
    second = made_sequence(tmp_path / "b0" / "version_0", SECOND, cost=8_000_000)
    by_clients(second, {1: (0.45, 0.52)}, "again")
    return [f"A={tmp_path}/a*", f"B={tmp_path}/b*/version_*"]


def test_tables_numbers_and_pictures(script, words, tmp_path, capsys):
    widths = made_run(tmp_path / "c0", {"val/x/accuracy": [0.1]})
    rows = "w,w,test,0.8,1,1000,1,1\n"
    scores = {"client": 0, "tier": "*", "num_examples": 5, "accuracy": 0.8, "loss": 1.0, "arch": "w"}
    write_client_scores(widths.folder, [scores], ["arch"])
    (widths.folder / "subnets-test.csv").write_text("subnet,arch,split,accuracy,loss,macs,parameters,bytes\n" + rows)
    names = ("figure", "accuracy", "architectures", "candidates")
    pictures = [tmp_path / "new" / f"{name}.png" for name in names]
    options = [word for name, path in zip(names, pictures, strict=True) for word in (f"--{name}", str(path))]
    more = [
        "--csv",
        str(tmp_path / "other" / "x.csv"),
        "--shares",
        "0.5",
        "--finetune",
        "again",
        "--iterations",
        "2",
    ]
    sizes = ["--share", "0.6", "--multiplier", "0.5"]
    assert script.main([*words, f"C={widths.folder}", *options, *more, *sizes]) == 0
    shown = unpadded(capsys.readouterr().out).splitlines()
    assert shown[0].startswith("| share | method | seeds | test (%) | test, fine-tuned (%) | server's test, fine-tuned")
    ours = "– | – | – | 62.5 (62.5 to 62.5) | 1.2 (0.6 to 1.8) | 0% | 1.2 G (600 M to 1.8 G) | 0% |"
    assert shown[2:5] == [
        f"| 50% | A | 2 | {ours}",
        "| 50% | B | 1 | 45.0 | 52.0 | – | 50.0 | 0.8 | -33% | 800 M | -33% |",
        "",
    ]
    assert shown[5] == "| mean difference of kept shares | A | B | multiplier 0.5 |"
    assert shown[7] == "| A | 0.000 | 0.417 | 0.250 |"  # (8, 12, 10), and (4, 16, 20), of (8, 16, 20)
    table = pd.read_csv(tmp_path / "other" / "x.csv")
    assert table["server"].tolist()[0] == 0.68
    assert table["up_mb"].tolist() == pytest.approx([0.6, 1.8, 0.8])
    assert all(picture.stat().st_size > 5000 for picture in pictures)


def test_without_options_there_is_the_table_only(script, words, tmp_path, capsys):
    before = {path.name for path in tmp_path.iterdir()}
    assert script.main(words) == 0
    shown = unpadded(capsys.readouterr().out).splitlines()
    assert [line.split("|")[1:4] for line in shown[2:]] == [
        [f" {share}% ", f" {method} ", f" {seeds} "]
        for share, counts in ((75, ("2", "1")), (50, ("2", "1")), (25, ("0 of 2", "0 of 1")))
        for method, seeds in zip("AB", counts, strict=True)
    ]
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_cannot_be_is_one_line(script, words, tmp_path, capsys):
    made_run(tmp_path / "plain", {"val/x/accuracy": [0.1]})
    for arguments, said in (
        ([*words, "C=nowhere"], "finds no run"),
        ([*words, "C"], "not of the form label="),
        ([*words, "--shares", "2"], "--shares: 2.0 is out of range"),
        ([f"C={tmp_path}/plain"], "no run has a sequence.json"),
        ([*words, f"C={tmp_path}/plain", "--accuracy", str(tmp_path / "x.png")], "has neither sequence.json nor"),
        ([*words, "--candidates", str(tmp_path / "x.png"), "--iterations", "9"], "no iteration 9"),
    ):
        assert script.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("fednas_tables: ")
        assert said in error
        assert error.count("\n") == 1
