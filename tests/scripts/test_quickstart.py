"""The quickstart runs, and its tiers' networks differ and rise in accuracy with their cost."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quickstart(tmp_path):
    """The script itself, for an eighth of the rounds, with this interpreter in place of an installation."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/quickstart", tmp_path / "scripts")
    for name, line in {
        "scripts/make_venv": "true",
        ".venv/bin/lit-fednas": f'{sys.executable} -m lit_fednas "$@"',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\nexport PYTHONPATH={ROOT}\n{line}\n")
        (tmp_path / name).chmod(0o755)
    shown = subprocess.run(
        ["scripts/quickstart", "--trainer.max_rounds", "12"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert shown.returncode == 0, shown.stderr
    assert "one network per tier" in shown.stdout
    (run,) = tmp_path.glob("runs/*/version_0")
    assert (run / "search/pareto.png").exists()
    assert (run / "report.html").exists()

    searched, scratch = (list(csv.DictReader((run / name / "tiers.csv").open())) for name in ("search", "scratch"))
    assert [row["tier"] for row in searched] == ["small", "medium", "large"]
    for column in ("macs", "test_accuracy"):
        rising = [float(row[column]) for row in searched]
        assert rising == sorted(set(rising)), column
    assert [row["arch"] for row in scratch] == [row["arch"] for row in searched]
    spent = json.loads((run / "ledger.json").read_text())["total"]["macs"]
    assert sum(float(row["macs"]) for row in scratch) == pytest.approx(spent, rel=0.15)
