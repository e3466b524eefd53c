"""A substitute for lit-fednas that records its calls and writes small runs without training."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_fednas.studies import jobs, runs
from tests.analysis.made_runs import CLIENT

#: A program that writes runs of two networks, with the option x as accuracy. Other options make it wait for another
#: run, wait for a signal, or fail.
PROGRAM = """#!{python}
import json, sys, time
from pathlib import Path
command, *words = sys.argv[1:]
def read(words):
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)
def settings(words):
    options = read(words)
    wrong = [name for name, value in options.items() if value == "unknown"]
    assert not wrong, f"{{wrong[0]}}: unknown is not a number"
    logger = {{"class_path": "lit_fednas.loggers.RunLogger"}}
    trainer = {{"max_rounds": 4, "check_val_every_n_rounds": 2, "logger": logger}}
    return json.dumps({{"trainer": trainer, "part": {{"class_path": options.get("part", "lit_fednas.X")}}}})
if command == "check":
    print(json.dumps([settings(words[2:]) for words, alone in json.load(sys.stdin)]))
    sys.exit()
options = read(words)
if "print_config" in options:
    print(settings(words))
    sys.exit()
place = json.loads(options["trainer.logger"])[0]["init_args"]
folder = Path(place["save_dir"]) / place["name"] / place["version"]
with open(folder / "calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print("out of paper")
if command == options.get("broken") or "x" in options and options["x"] == options.get("broken"):
    sys.exit(1)
x = float(options["x"])
head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes\\n"
rows = [("smallest", x, 10), ("largest", x + 0.1, 40)]
table = lambda split: head + "".join(f"{{n}},{{n}},{{split}},{{y}},1,{{m}},1,4\\n" for n, y, m in rows)
if command == "fit":
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "last.ckpt").touch()
    (folder / "config.yaml").write_text("seed_everything: " + options["seed_everything"] + "\\nckpt_path: null")
    clients = [{client}]
    validated = options.get("trainer.max_rounds") != "1"
    metrics = {{f"val/{{n}}/accuracy": y for n, y, _ in rows}} if validated else {{}}
    (folder / "rounds.jsonl").write_text(json.dumps({{"round": 0, "metrics": metrics, "clients": clients}}) + "\\n")
    (folder / "subnets-val.csv").write_text(table("val"))
    deadline = time.monotonic() + 20
    while "together" in options and len(list(folder.parent.parent.glob("*/seed0/calls"))) < 2:
        assert time.monotonic() < deadline
    if options["x"] == options.get("forever") and "ckpt_path" not in options:
        time.sleep(60)
else:
    (folder / "subnets-test.csv").write_text(table("test"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new working directory, with the program above as lit-fednas."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "bin" / "lit-fednas"
    program.parent.mkdir()
    client = CLIENT | {"macs": 100, "bytes_down": 3, "bytes_up": 2}
    program.write_text(PROGRAM.format(python=sys.executable, client=client))
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    for module in (jobs, runs):
        monkeypatch.setattr(module, "environment", lambda jobs: environment)
    monkeypatch.setattr(runs, "CHECK", [str(program), "check"])
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., str]:
    """Writes a study of two arms and two seeds with changes; None removes a key."""
    content = {
        "seeds": [0, 1],
        "options": {"data.num_clients": 5, "x": 0.1},
        "configs": ["common.yaml"],
        "arms": {
            "A, large": {"configs": ["a.yaml"], "options": {"x": 0.5}},
            "B": {"configs": ["b.yaml"], "options": {"x": 0.25}},
        },
    }

    def written(**changes: Any) -> str:
        changed = {key: value for key, value in {**content, **changes}.items() if value is not None}
        (folder / "small.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
        return "small.yaml"

    return written


def calls(run: str, study: str = "small") -> list[list[str]]:
    """Returns the started commands of a run."""
    return [json.loads(line) for line in Path("runs", study, run, "calls").read_text().splitlines()]


def statuses(study: str = "small") -> dict[str, str]:
    """Returns the status of a study's runs by folder."""
    content = json.loads(Path("runs", study, "study.json").read_text())
    return {run["folder"]: run["status"] for run in content["runs"]}
