"""Arena files, and running them; a stand-in for lit-fednas notes how it was called."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lit_fednas import cli
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.sweeps import runs
from lit_fednas.sweeps.arena_file import read_arena

#: Trains nothing: two networks, of which the option x says how accurate they are; `search` or `test` tests them.
PROGRAM = """#!{python}
import json, sys
from pathlib import Path
command, *words = sys.argv[1:]
options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
if "print_config" in options:
    wrong = [name for name, value in options.items() if value == "unknown"]
    assert not wrong, f"{{wrong[0]}}: unknown is not a number"
    logger = {{"class_path": "lit_fednas.loggers.RunLogger"}}
    print(json.dumps({{"trainer": {{"max_rounds": 2, "check_val_every_n_rounds": 1, "logger": logger}}}}))
    sys.exit()
place = json.loads(options["trainer.logger"])[0]["init_args"]
folder = Path(place["save_dir"]) / place["name"] / place["version"]
with open(folder / "calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if command == options.get("broken"):
    sys.exit("out of paper")
x = float(options["x"])
head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes\\n"
rows = [("s", x, 10), ("l", x + 0.1, 40)]
table = lambda split: head + "".join(f"{{n}},{{n}},{{split}},{{y}},1,{{m}},1,4\\n" for n, y, m in rows)
if command == "fit":
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "last.ckpt").touch()
    (folder / "config.yaml").write_text("seed_everything: " + options["seed_everything"])
    clients = [{{"client": 0, "status": "ok", "macs": 100, "bytes_down": 3, "bytes_up": 2}}]
    metrics = {{f"val/{{n}}/accuracy": y for n, y, _ in rows}}
    (folder / "rounds.jsonl").write_text(json.dumps({{"round": 0, "metrics": metrics, "clients": clients}}) + "\\n")
    (folder / "subnets-val.csv").write_text(table("val"))
else:
    (folder / "subnets-test.csv").write_text(table("test"))
"""

METHODS = {
    "A, large": {"configs": ["a.yaml"], "options": {"x": 0.5}, "search": {"evaluations": 4}},
    "B": {"configs": ["b.yaml"], "options": {"x": 0.25}},
}
CONTENT = {
    "name": "four",
    "seeds": [0, 1],
    "tiers": {"small": {"macs": 10}, "big": {"macs": "4e1"}},
    "common": {"configs": ["common.yaml"], "options": {"data.num_clients": 5, "x": 0.1}},
    "methods": METHODS,
    "compare": {"targets": [0.3]},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An arena of two methods; the working directory is the test's own, and lit-fednas the program above."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "bin" / "lit-fednas"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    monkeypatch.setattr(runs, "environment", lambda jobs: environment)
    return write(tmp_path / "arena.yaml")


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**CONTENT, **changes}, sort_keys=False))
    return path


def calls(run: str) -> list[list[str]]:
    return [json.loads(line) for line in Path("runs/four", run, "calls").read_text().splitlines()]


def run(file: Path, *words: str) -> int:
    return cli.main(["arena", str(file), *words])


def test_methods_run_with_every_seed_and_are_compared_at_the_tiers(file: Path, capsys: Any) -> None:
    assert run(file, "--jobs", "2", "--", "--more=1") == 0
    fit, search = calls("A_large/seed1")
    settings = ["--config", "a.yaml", "--config", "common.yaml", "--data.num_clients=5", "--x=0.5"]
    assert fit[:-1] == ["fit", *settings, "--seed_everything=1", "--more=1"]
    assert search[: len(fit) - 1] == ["search", *fit[1:-1]]
    tiers, evaluations, _, checkpoint = search[len(fit) - 1 :]
    budgets = {"small": {"macs": 10.0}, "big": {"macs": 40.0}}
    given = {"class_path": "lit_fednas.tiers.Budgets", "init_args": {"budgets": budgets}}
    assert json.loads(tiers.removeprefix("--search.tiers=")) == given
    assert evaluations == "--search.evaluations=4"
    assert checkpoint == "--ckpt_path=runs/four/A_large/seed1/checkpoints/last.ckpt"
    assert [words[0] for words in calls("B/seed0")] == ["fit", "test"]

    table = pd.read_csv("runs/four/compare.csv")
    means = table.groupby(["tier", "method"], sort=False)["test"].mean()
    assert list(means.index) == [(tier, method) for tier in ("small", "big") for method in ("A, large", "B")]
    assert means.tolist() == pytest.approx([0.5, 0.25, 0.6, 0.35])
    assert table["spent_bytes"].eq(5).all()
    printed = capsys.readouterr().out
    assert printed.index("checking: B") < printed.index("running: A_large/seed0, command 1 of 2")
    assert "written in runs/four: compare.md, compare.png, compare.html, compare.csv, targets.csv" in printed


def test_it_goes_on_where_it_was_stopped_and_takes_more_methods_and_commands(file: Path, capsys: Any) -> None:
    once = ("--seeds", "0", "--", "--broken=search")
    for _ in range(2):
        assert run(file, *once) == 1
    assert [words[0] for words in calls("A_large/seed0")] == ["fit", "search", "search"]
    assert [words[0] for words in calls("B/seed0")] == ["fit", "test"]  # finished
    wrong = {"finetune": {"f": {"rounds": "unknown"}}}
    write(file, methods={**METHODS, "A, large": {**METHODS["A, large"], **wrong}})
    assert run(file, *once) == 2  # what is added is parsed before anything goes on
    assert "finetune.rounds: unknown is not a number" in capsys.readouterr().err
    write(file, methods={**METHODS, "B": {**METHODS["B"], "search": {}}, "C": {**METHODS["B"]}})
    assert run(file, "--methods", "C", *once) == 0
    table = pd.read_csv("runs/four/compare.csv")
    assert table["method"].unique().tolist() == ["B", "C"]  # B of the earlier start, A is not finished


def test_no_method_is_trained_before_all_commands_are_parsed(file: Path, capsys: Any) -> None:
    settings = {"options": {"x": 1}, "search": {}, "finetune": {"f": {"rounds": "unknown"}}}
    write(file, methods={**METHODS, "B": {"configs": ["b.yaml"], **settings}})
    assert run(file) == 2
    assert "finetune.rounds: unknown is" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_it_compares_with_the_options_of_the_command(file: Path) -> None:
    write(file, compare={"macs": "equal", "bytes": 7.0, "rounds": None, "targets": 0.3, "metric": "accuracy"})
    assert run(file) == 0
    text = Path("runs/four/compare.md").read_text()
    assert "Networks at the last validation within 100 MACs, 7 B of all clients' training" in text


def test_a_fine_tuning_is_a_method_of_its_own(file: Path) -> None:
    finetune = {"tuned": {"rounds": 2}, "from scratch": {"initial": "random"}}
    # a method can begin with another one of its seed, and is searched at its own tiers
    own = {"configs": ["${seed}.yaml"], "options": {"x": "runs/four/B/seed${seed}"}}
    write(file, methods={"A": {**METHODS["A, large"], **own, "tiers": ["big"], "finetune": finetune}})
    fit, search, tuned, scratch = read_arena(file).commands("A", 3)
    assert fit[3] == "3.yaml"
    assert "--x=runs/four/B/seed3" in fit
    (tiers,) = [json.loads(word.partition("=")[2]) for word in search if word.startswith("--search.tiers=")]
    assert tiers["init_args"]["budgets"] == {"big": {"macs": 40.0}}
    assert tuned[:2] == ["lit-fednas", "finetune"]
    assert tuned[-2:] == ["--finetune.name=tuned", "--finetune.rounds=2"]
    assert scratch[-2:] == ["--finetune.name=from_scratch", "--finetune.initial=random"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {}}, "methods: missing; name at least one"),
        ({"methods": {"A": {"config": ["a.yaml"]}}}, r"methods.A: config: is unknown; did you mean configs\?; choose"),
        ({"methods": {"A": {"configs": "a.yaml"}}}, "methods.A.configs: a.yaml is not a list"),
        ({"methods": {"A": {"finetune": {"f": {}}}}}, "methods.A.finetune: begins with the networks of a search"),
        ({"methods": {"A": {"tiers": ["huge"]}}}, "methods.A.tiers: huge is not a tier; choose from small, big"),
        ({"methods": {"A b": {}, "A, b": {}}}, "two labels make the same folder"),
        ({"compare": {"macs": -1}}, "compare: macs: -1.0 must be above 0"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_what_cannot_be_run_is_told(file: Path, changes: dict[str, Any], message: str) -> None:
    write(file, **changes)
    with pytest.raises((ConfigError, DataError), match=message):
        read_arena(file)
