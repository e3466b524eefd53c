"""The quickstart runs, and the networks that it trains alone have the computation that it says."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORTER = [
    "--cost_ledger.max_macs=2e9",
    "--pool_growth.latest=0.3",
    "--model.evaluation.recalibrate_batches=4",
    "--data.source.init_args.copies=4",
]
TIERS = ["sensor", "watch", "phone", "tablet", "laptop"]


@pytest.mark.slow
def test_the_quickstart(tmp_path):
    """The script itself, for a few rounds on fewer images, where these tests' environment is installed already."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/quickstart", tmp_path / "scripts")
    (tmp_path / "scripts/make_venv").symlink_to("/bin/true")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shown = subprocess.run(
        ["scripts/quickstart", *SHORTER],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert shown.returncode == 0, shown.stderr
    for tier in TIERS:
        for name in ("one supernet", "alone, same split", "alone, all for the smallest"):
            assert re.search(rf"^{tier} +{name} ", shown.stdout, re.MULTILINE)
    run, smallest = sorted(tmp_path.glob("runs/*/version_0"))
    assert (run / "search/pareto.png").exists()
    assert (run / "report.html").exists()

    spent, alone = (json.loads((folder / "ledger.json").read_text())["total"]["macs"] for folder in (run, smallest))
    assert alone == pytest.approx(spent, rel=0.1)
    searched, split = (list(csv.DictReader((run / name / "tiers.csv").open())) for name in ("search", "split"))
    assert [row["tier"] for row in searched] == TIERS
    assert [row["arch"] for row in split] == [row["arch"] for row in searched]
    assert sum(float(row["macs"]) for row in split) == pytest.approx(spent, rel=0.15)
