"""From folders of runs to the table, the files and the picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.made_runs import made_run, unpadded
from tests.scripts.conftest import load

SIMPLE, COMPLEX = "val/devices/simple/accuracy", "val/devices/complex/accuracy"


@pytest.fixture(scope="module")
def script():
    return load("rounds_to_target")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for seed, best in enumerate((0.62, 0.60)):
        values = {SIMPLE: [0.3, best, best], COMPLEX: [0.2, 0.5, 0.6]}
        made_run(tmp_path / f"fedhen{seed}" / "version_0", values, 100, seed)
        values = {"val/s/accuracy": [0.1, 0.2, best], COMPLEX: [0.1, 0.1, 0.2]}
        made_run(tmp_path / f"noside{seed}", values, 80, seed)
    methods = [f"FedHeN={tmp_path}/fedhen*/version_*", f"NoSide={tmp_path}/noside*"]
    return [
        *methods,
        "--metric",
        f"simple={SIMPLE}",
        "-m",
        f"complex={COMPLEX}",
        "-m",
        "NoSide:simple=val/s/accuracy",
    ]


def test_table_files_and_picture(script, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert script.main([*words, "--targets", "0.6", "complex=0.5,0.2", "--out", str(out)]) == 0
    shown = unpadded(capsys.readouterr().out)
    assert "| simple | 60 % | 2 (2, 2) | 3 (3, 3) | 1.5× |" in shown
    assert "| complex | 50 % | 2 (2, 2) | > 3 (> 3, > 3) | > 1.5× |" in shown
    assert "| complex | 20 % | 1 (1, 1) | 3 (3, 3) | 3.0× |" in shown
    assert "| complex | 20 % | 100 (100, 100) | 240 (240, 240) | 2.4× |" in shown
    text = (out / "table.md").read_text()
    assert unpadded(text).rstrip() in shown
    assert [line for line in text.splitlines() if line and not line.startswith("|")] == list(script.TITLES.values())
    table = pd.read_csv(out / "table.csv")
    assert len(table) == 12
    last = table[(table["run"].str.endswith("noside1")) & (table["target"] == 0.5)].iloc[0]
    assert last[["model", "method", "metric"]].tolist() == ["complex", "NoSide", COMPLEX]
    assert last[["reached", "rounds", "macs"]].tolist() == [False, 3, 240]
    assert (out / "curves.png").stat().st_size > 10000


def test_the_targets_are_those_that_all_have_reached(script, words, capsys):
    assert script.main(words) == 0
    shown = unpadded(capsys.readouterr().out)
    assert [line.split("|")[2].strip() for line in shown.splitlines() if line.startswith("| simple")][:2] == [
        "60 %",
        "59 %",
    ]
    assert "| complex | 20 % |" in shown
    assert "| complex | 19 % |" in shown
    assert ">" not in shown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--targets", "much"], "much: is not of the form 0.5"),
        (["--targets", "tiny=0.5"], "tiny: is not a model; choose from simple, complex"),
        (["--targets", "simple=0.5"], "complex: has no target"),
        (["--targets", "50"], "must be above 0 and at most 1"),
        (["-m", "big=val/big/accuracy"], "has not logged val/big/accuracy"),
    ],
)
def test_what_cannot_be_is_one_line(script, words, more, said, capsys):
    assert script.main([*words, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rounds_to_target: ")
    assert said in error
    assert error.count("\n") == 1
