"""The experiments of the findings: run once, and gone on with."""

import re
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
import yaml

from lit_fednas.analysis.findings import MINUTES
from tests.scripts.conftest import load


@pytest.fixture
def findings() -> ModuleType:
    return load("findings")


@pytest.fixture
def calls(findings, tmp_path, monkeypatch) -> list[list[str]]:
    """The commands of two arms, of which the second needs the first; each leaves its checkpoint and a table."""
    content = {
        "protocol": "by hand",
        "seeds": [3, 4],
        "arms": {"old": ["fit --config a.yaml"], "new": ["fit --from {old}/x", "finetune --config 'b c.yaml'"]},
        "measures": {"end": {"table": "end.csv", "column": "accuracy"}},
        "claims": [
            {"paper": "X", "where": "1", "claim": "better", "of": ["new", "end"], "over": ["old", "end"], "above": 0.2}
        ],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    made: list[list[str]] = []

    def run(words: list[str], stdout: object, stderr: object) -> SimpleNamespace:
        made.append(words[3:])
        given = dict(word.split("=", 1) for word in words if "=" in word)
        place = [given[f"--trainer.logger.init_args.{name}"] for name in ("save_dir", "name", "version")]
        folder = Path(*place)
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints/last.ckpt").touch()
        value = 0.5 if "new" in place else 0.25
        pd.DataFrame({"accuracy": [value]}).to_csv(folder / "end.csv", index=False)
        return SimpleNamespace(returncode=int("broken" in words))

    monkeypatch.setattr(findings, "FILES", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    return made


def test_each_arm_is_run_once_with_each_seed(findings, calls, tmp_path, capsys) -> None:
    options = ["--out", "out", "--results", "kept.csv"]
    assert findings.main(["mine", *options]) == 0
    seeds = [next(word for word in words if "seed_everything" in word) for words in calls]
    assert [words[0] for words in calls] == ["fit", "fit", "finetune"] * 2
    assert seeds == ["--seed_everything=3"] * 3 + ["--seed_everything=4"] * 3
    assert "out/mine/old/seed3/x" in calls[1]
    assert calls[2][:5] == ["finetune", "--from", "out/mine/old/seed3/x", "--config", "b c.yaml"]
    assert calls[2][-1] == "--ckpt_path=out/mine/new/seed3/checkpoints/last.ckpt"
    kept = pd.read_csv("kept.csv")
    assert len(kept) == 2 * 2 * 2  # arms, seeds, measures
    assert set(kept["measure"]) == {"end", MINUTES}
    assert "0.25 (0.25 to 0.25)" in (text := capsys.readouterr().out)
    assert re.search(r"seen\s*$", text)
    assert findings.main(["mine", *options]) == 0
    assert len(calls) == 6  # nothing anew
    assert pd.read_csv("kept.csv").equals(kept)


def test_a_command_that_fails_is_named_and_run_again(findings, calls, tmp_path, capsys) -> None:
    path = tmp_path / "mine.yaml"
    whole = path.read_text()
    path.write_text(whole.replace("finetune --config", "finetune broken --config"))
    assert findings.main(["mine", "--seeds", "3", "--results", "kept.csv"]) == 2
    assert "runs/findings/mine/new/seed3" in capsys.readouterr().err
    path.write_text(whole)
    assert findings.main(["mine", "--seeds", "3", "--results", "kept.csv"]) == 0
    assert [words[0] for words in calls] == ["fit", "fit", "finetune", "finetune"]
    path.write_text(whole.replace("fit --from", "fit --seriously --from"))
    assert findings.main(["mine", "--seeds", "3", "--results", "kept.csv"]) == 2
    assert "new/seed3: was made by other commands; remove it" in capsys.readouterr().err
    assert len(calls) == 4
