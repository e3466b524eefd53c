"""The command ``runs``, against the files of runs."""

import shutil
from pathlib import Path

import pytest

from lit_fednas.cli import main
from lit_fednas.records import SearchFiles, read_rounds
from tests.analysis.made_runs import made_run


@pytest.fixture
def runs(tmp_path, finished_run, monkeypatch):
    """A finished run, two without a finished round, and one that stopped and contains a fine-tuning's run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "runs/digits/version_0")
    for name in ("version_1", "version_2"):
        Path("runs/digits", name, "checkpoints").mkdir(parents=True)
        for file in ("config.yaml", "inputs.json", "partition.csv"):
            shutil.copy(finished_run / file, Path("runs/digits", name))
    made_run(Path("runs/made/version_0"), {"val/mean/accuracy": [0.25, None, 0.5, None]})
    made_run(Path("runs/made/version_0/finetune/runs/small-0"), {"val/mean/accuracy": [0.75]})
    return tmp_path / "runs"


def test_rows_agree_with_the_runs_files(runs, capsys):
    assert main(["runs"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [f"runs/digits/version_{n}" for n in (0, 1, 2)] + ["runs/made/version_0"]
    tiers = SearchFiles(runs / "digits/version_0/search").rows("tiers")
    expected = ", ".join(f"{row['tier']} {100 * row['test_accuracy']:.1f}%" for row in tiers)
    assert f"ElasticResNet, TrackingSandwich  {expected} (test accuracy)  " in rows[0]
    assert "0 of 3" in rows[1]
    assert " mean 50.0% (val accuracy)  " in rows[3]
    assert rows[3].endswith(f"  {sum(file.stat().st_size for file in runs.glob('made/**/*.jsonl')) / 1000:.3g} kB")


def test_a_run_with_a_search_of_replaced_weights_shows_its_last_mean(runs, capsys):
    """The run is not damaged: its rounds were trained again."""
    folder = runs / "digits/version_0"
    for path in folder.glob("subnets-*.csv"):
        path.unlink()
    for files in SearchFiles.within(folder):
        files.write_settings({**files.settings(), "weights": "of others"})
    assert main(["runs", "runs/digits"]) == 0
    first = capsys.readouterr().out.splitlines()[1]
    mean = [*read_rounds(folder)][-1]["metrics"]["val/mean/accuracy"]
    assert f" mean {100 * mean:.1f}% (val accuracy)  " in first


def test_a_damaged_run_is_listed_with_a_line(runs, capsys):
    (runs / "made/version_0/rounds.jsonl").write_text("{}\n")
    assert main(["runs"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("damaged: runs/made/version_0/rounds.jsonl: line 1 is not")
    )
    assert main(["runs", "runs/nowhere"]) == 2
