"""The command ``runs``: rows whose values can be worked out, and what is removed."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from lit_fednas.cli import main
from lit_fednas.records.files import FolderLock
from tests.analysis.made_runs import made_run


@pytest.fixture
def runs(tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, one that was stopped, one with a fine-tuning's training in it, two that never ended a round."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "runs/digits/version_0")
    for name in ("digits/version_1", "digits/version_2"):
        Path("runs", name, "checkpoints").mkdir(parents=True)
        for file in ("config.yaml", "inputs.json", "partition.csv", "partition.png"):
            shutil.copy(finished_run / file, Path("runs", name))
    made_run(Path("runs/made/version_0"), {"val/mean/accuracy": [0.25, None, 0.5, None]})
    made_run(Path("runs/made/version_0/finetune/runs/small-0"), {"val/mean/accuracy": [0.75]})
    return tmp_path / "runs"


def test_rows_are_what_the_runs_files_say(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "method", "best", "of", "each", "tier", "rounds", "size"]
    assert [row.split()[0] for row in rows] == [f"runs/digits/version_{n}" for n in (0, 1, 2)] + ["runs/made/version_0"]
    with open(runs / "digits/version_0/search/tiers.csv", newline="") as file:
        tiers = [f"{row['tier']} {100 * float(row['test_accuracy']):.1f}%" for row in csv.DictReader(file)]
    assert f"ElasticResNet, TrackingSandwich  {', '.join(tiers)} (test accuracy)" in rows[0]
    assert "  3  " in rows[0]
    assert "0 of 3" in rows[1]
    assert "mean 50.0% (val accuracy)" in rows[3]
    (rows_file, other) = sorted(runs.glob("made/**/*.*"))
    assert rows[3].endswith(f"  {(rows_file.stat().st_size + other.stat().st_size) / 1000:.3g} kB")


def test_only_what_never_ended_a_round_is_removed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun, other = runs / "digits/version_1", runs / "digits/version_2"
    lock = FolderLock(begun)
    (other / "notes.txt").touch()
    assert main(["runs", "runs", "--clean"]) == 0
    kept = [
        "kept: runs/digits/version_1, in which a process trains",
        "kept: runs/digits/version_2, which holds notes.txt",
    ]
    assert capsys.readouterr().out.splitlines()[-2:] == kept
    lock.release()
    (other / "notes.txt").unlink()
    (other / "checkpoints/last.ckpt").touch()  # the first round's, whose record is about to be written
    assert main(["runs", "runs", "--clean"]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "removed: runs/digits/version_1"
    assert sorted(path.name for path in runs.glob("*/*")) == ["version_0", "version_0", "version_2"]


def test_damage_is_a_line_below(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "made/version_0/rounds.jsonl").write_text("{}\n")
    assert main(["runs"]) == 0
    assert "damaged: runs/made/version_0/rounds.jsonl: line 1 is not" in capsys.readouterr().out.splitlines()[-1]
    assert main(["runs", "runs/nowhere"]) == 2
    assert "runs/nowhere: holds no run" in capsys.readouterr().err
