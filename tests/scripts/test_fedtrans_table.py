"""From folders of runs to FedTrans' Table 2."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lit_fednas.records.run import write_client_scores
from tests.analysis.made_runs import made_run, unpadded
from tests.scripts.conftest import load


@pytest.fixture(scope="module")
def script():
    return load("fedtrans_table")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    for name, macs, accuracies in (("a0", 100, (0.5, 0.6)), ("a1", 100, (0.7, 0.6)), ("b0", 250, (0.4, 0.4))):
        run = made_run(tmp_path / name / "version_0", {"val/x/accuracy": [0.1, 0.2]}, macs, int(name[1]), {"x": 5})
        scores = [
            {"client": client, "tier": "*", "num_examples": 3, "accuracy": accuracy, "loss": 1.0}
            for client, accuracy in enumerate(accuracies)
        ]
        write_client_scores(run.folder, scores)
    return [f"A={tmp_path}/a*", f"B={tmp_path}/b*/version_*"]


def test_table_numbers_and_picture(script, words, tmp_path, capsys):
    picture, numbers = tmp_path / "new" / "boxes.png", tmp_path / "table.csv"
    assert script.main([*words, "--figure", str(picture), "--csv", str(numbers)]) == 0
    shown = unpadded(capsys.readouterr().out).splitlines()
    assert shown[0].startswith(
        "| method | seeds | accuracy (%) | IQR (%) | worst (%) | cost (MACs) | network | storage |"
    )
    accuracies = "60.00 (55.00 to 65.00) | 5.00 (5.00 to 5.00) | 55.00 (50.00 to 60.00)"
    assert shown[2] == f"| A | 2 | {accuracies} | 200 | 2.8 kB | 4 B | 1.0 |"
    assert shown[3] == "| B | 1 | 40.00 | 0.00 | 40.00 | 500 | 7 kB | 4 B | 2.5 |"
    assert pd.read_csv(numbers)["macs"].tolist() == [200, 200, 500]
    assert picture.stat().st_size > 5000


def test_without_options_there_is_the_table_only(script, words, tmp_path, capsys):
    before = {path.name for path in tmp_path.iterdir()}
    assert script.main(words) == 0
    assert unpadded(capsys.readouterr().out).count("\n") == 4
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_cannot_be_is_one_line(script, words, tmp_path, capsys):
    for more, said in (("C=nowhere", "finds no run"), ("C", "not of the form label=")):
        assert script.main([*words, more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fedtrans_table: ")
        assert said in error
        assert error.count("\n") == 1
    (tmp_path / "b0" / "version_0" / "clients.csv").unlink()
    assert script.main(words) == 2
    assert "clients.csv: is missing" in capsys.readouterr().err
