"""From folders of runs to what they have reached at equal computation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.made_runs import made_run, unpadded
from tests.scripts.conftest import load

SUBNETS = {"w1": 8, "w0.5": 2}


@pytest.fixture(scope="module")
def script():
    return load("equal_computation")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for seed in (0, 1):
        values = {"val/w1/accuracy": [0.1, 0.3, 0.5, 0.6], "val/w0.5/accuracy": [0.2, 0.3 + 0.1 * seed, 0.5, 0.6]}
        made_run(tmp_path / f"a{seed}" / "version_0", values, 100, seed, SUBNETS)
        values = {"val/full/accuracy": [0.2, 0.4], "val/half/accuracy": [0.3, 0.35]}
        made_run(tmp_path / f"b{seed}", values, 120, seed, {"full": 9, "half": 3})
    return [f"A={tmp_path}/a*", f"B={tmp_path}/b*"]


def test_table_files_and_picture(script, words, tmp_path, capsys):
    out = tmp_path / "out"
    assert script.main([*words, "--out", str(out)]) == 0
    shown = unpadded(capsys.readouterr().out)
    assert shown.startswith("At most 240 MACs of all clients\n")
    assert "| method | seeds | w0.5 (%) | w1 (%) | rounds | MACs | bytes down | bytes up |" in shown
    assert "| A | 2 | 35.0 (30.0 to 40.0) | 30.0 (30.0 to 30.0) | 2 | 200 | 2 kB | 800 B |" in shown
    assert "| B | 2 | 35.0 (35.0 to 35.0) | 40.0 (40.0 to 40.0) | 2 | 240 | 2.4 kB | 960 B |" in shown
    assert "Ended before" not in shown
    assert unpadded((out / "table.md").read_text()).rstrip() in shown
    table = pd.read_csv(out / "table.csv")
    assert table["macs"].tolist() == [200, 200, 240, 240]
    assert table["w0.5"].tolist() == [0.3, 0.4, 0.35, 0.35]
    assert (out / "accuracy.png").stat().st_size > 10000


def test_a_budget_and_metrics_of_ones_own(script, words, capsys):
    options = ["--macs", "150", "-m", "half=val/half/accuracy", "-m", "A:half=val/w0.5/accuracy"]
    assert script.main([*words, *options]) == 0
    shown = unpadded(capsys.readouterr().out)
    assert "| A | 2 | 20.0 (20.0 to 20.0) | 1 | 100 |" in shown
    assert "| B | 2 | 30.0 (30.0 to 30.0) | 1 | 120 |" in shown
    assert script.main([*words, "--macs", "1e3"]) == 0
    assert "Ended before the budget of 1 kMACs: A a0/version_0, A a1/version_0, B " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--macs", "110"], "had spent 120 MACs by its first validation"),
        (["-m", "full=val/full/accuracy"], "has not logged val/full/accuracy"),
        (["C=nowhere"], "nowhere: finds no run"),
    ],
)
def test_what_cannot_be_is_one_line(script, words, more, said, capsys):
    assert script.main([*more, *words] if more[0].startswith("C") else [*words, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith("equal_computation: ")
    assert said in error
    assert error.count("\n") == 1
