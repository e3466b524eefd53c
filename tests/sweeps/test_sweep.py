"""Sweep files, and running them without a server; as W&B would, as far as it can be asked here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeps.config import schema_violations_from_proposed_config
from sweeps.params import HyperParameter
from wandb import wandb_agent

from lit_fednas import cli
from lit_fednas.errors import ConfigError
from lit_fednas.sweeps.macros import expand
from lit_fednas.sweeps.runs import environment, folder_names
from lit_fednas.sweeps.sweep_file import DISTRIBUTIONS, combinations, distribution, read_sweep_file
from tests.sweeps.test_presets import SWEEPS

#: Stands for lit-fednas: notes how it was called, waits for another run or for its end, fails where it is told to.
PROGRAM = """
import json, sys, time
from pathlib import Path
options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
if "print_config" in options:
    logger = "logger: {class_path: lit_fednas.loggers.RunLogger, init_args: {version: null}}"
    print("trainer: {max_rounds: 4, check_val_every_n_rounds: 2, " + logger + "}")
    sys.exit()
logger, = json.loads(options["trainer.logger"])
place = logger["init_args"]
folder = Path(place["save_dir"]) / place["name"] / place["version"]
with open(folder / "calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
(folder / "checkpoints").mkdir(exist_ok=True)
(folder / "checkpoints" / "last.ckpt").touch()
metrics = {"val/largest/accuracy": float(options["x"]) / 10}
(folder / "rounds.jsonl").write_text(json.dumps({"round": 0, "metrics": metrics, "clients": []}) + "\\n")
deadline = time.monotonic() + 20
while "together" in options and len(list(folder.parent.parent.glob("*/seed0/calls"))) < 2:
    assert time.monotonic() < deadline
if "forever" in options and options["x"] == "2" and "ckpt_path" not in options:
    time.sleep(60)
print("out of paper")
sys.exit(options["x"] == options.get("broken"))
"""


def main(words: list[str]) -> int:
    return cli.main(["sweep", *words])


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of three values over the program above; the working directory is the test's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return write(tmp_path / "small.yaml", parameters={"x": {"values": [1, 2, 3]}})


def write(path: Path, **changes: Any) -> Path:
    command = ["${interpreter}", "${program}", "${args}"]
    content = {"method": "grid", "program": "program.py", "command": command, **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


def runs_of(name: str = "small") -> dict[str, dict[str, Any]]:
    return {run["folder"]: run for run in json.loads(Path("runs", name, "sweep.json").read_text())["runs"]}


def statuses() -> list[str]:
    return [run["status"] for run in runs_of().values()]


def calls(run: str) -> list[list[str]]:
    return [json.loads(line) for line in Path("runs/small", run, "calls").read_text().splitlines()]


def agents_command(file: dict[str, Any], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What W&B's agent starts for a combination; its files go into the working directory."""
    started = []

    def start(command: list[str], **others: Any) -> Any:
        started.append(command)
        return type("Process", (), {})()

    monkeypatch.setenv("WANDB_DIR", str(Path.cwd()))
    monkeypatch.setenv("WANDB_RUN_ID", "to be put back")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", "to be put back")
    with monkeypatch.context() as patch:
        patch.setattr(wandb_agent, "AgentProcess", start)
        agent = wandb_agent.Agent(api=None, queue=None)
        agent._sweep_command = list(file.get("command", []))
        arguments = {name: {"value": value} for name, value in values.items()}
        agent._command_run({"run_id": "abc", "program": file["program"], "args": arguments})
    return started[0]


def test_files_are_valid_for_wandb_and_commands_those_of_its_agent(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for path in SWEEPS:
        assert schema_violations_from_proposed_config(read(path)) == []
        assert read(path)["name"] == path.stem
        file = read_sweep_file(path)
        for values in combinations(file, 3 if file["method"] == "random" else None):
            expected = agents_command(file, values, monkeypatch)
            assert expand(file["command"], file["program"], values) == expected


def test_every_macro_is_expanded_as_by_wandbs_agent(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE", "small")
    values = {"a.b": 0.1, "flag": True, "no": False, "text": "x y", "list": [1, 2], "none": None}
    macros = "program args args_no_hyphens args_no_equals args_no_boolean_flags args_json env interpreter envvar:HOUSE"
    for command in (None, *(["first", "${" + macro + "}", 3] for macro in macros.split())):
        file = read_sweep_file(write(small, command=command, parameters={"a": {"value": 1}}))
        expected = agents_command(read(small), values, monkeypatch)
        assert expand(file["command"], "program.py", values) == expected
        assert "${" not in " ".join(expected)


@pytest.mark.parametrize(
    "parameter",
    [
        {"values": [1, "a", None]},
        {"min": 1, "max": 4},
        {"min": 1.0, "max": 4},
        {"distribution": "q_uniform", "min": 0, "max": 10, "q": 2.5},
        {"distribution": "log_uniform_values", "min": 0.001, "max": 10},
    ],
    ids=str,
)
def test_distributions_are_wandbs(parameter: dict[str, Any]) -> None:
    quantile = DISTRIBUTIONS[distribution(parameter)]
    for u in (0.001, 0.1, 0.26, 0.49, 0.51, 0.74, 0.999):
        expected = HyperParameter("x", parameter).ppf(u)
        assert quantile(parameter, u) == (expected if isinstance(expected, str | None) else pytest.approx(expected))


def test_a_grid_is_every_combination(small: Path) -> None:
    parameters = {"b": {"values": [1, 2]}, "a": {"value": 0}, "c": {"values": ["x", "y"]}}
    found = combinations(read_sweep_file(write(small, parameters=parameters)), None)
    assert [tuple(one.values()) for one in found] == [(0, 1, "x"), (0, 1, "y"), (0, 2, "x"), (0, 2, "y")]


def test_draws_stay_when_there_are_more_of_them() -> None:
    parameters = {"a": {"min": 0.0, "max": 1.0}, "b": {"min": 0.0, "max": 1.0}}
    file: dict[str, Any] = {"method": "random", "parameters": parameters}
    draws = combinations(file, 50)
    assert combinations(file, 3) == draws[:3]
    assert combinations(file, 3, seed=1) != draws[:3]
    alone = {**file, "parameters": {"b": parameters["b"]}}
    assert [one["b"] for one in combinations(alone, 3)] == [one["b"] for one in draws[:3]]
    assert all(one["a"] != one["b"] for one in draws)
    assert 0.35 < sum(one["a"] for one in draws) / 50 < 0.65


def test_folders_are_named_by_what_differs() -> None:
    names = ["lr=0.12346,b=d_0_1_2", "lr=1e-07,b=None"]
    assert folder_names([{"a.lr": 0.123456789, "b": "d: [0,1]/2"}, {"a.lr": 1e-7, "b": None}]) == names
    with pytest.raises(ConfigError, match=r"two combinations are called lr=0\.1;"):
        folder_names([{"a.lr": 0.1}, {"a.lr": 0.1000000001}])


def parameter(**settings: Any) -> dict[str, Any]:
    return {"parameters": {"x": settings}}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"method": "bayes"}, "", "method: bayes needs W&B's server"),
        (parameter(min=1, max=3), "", "parameters.x: int_uniform is not among constant, cat"),
        (parameter(values=[]), "", "parameters.x: {'values': []} leaves nothing to choose from"),
        ({"method": "random"}, "", "count: None for a random sweep"),
        ({"parameters": {"seed_everything": {"values": [0, 1]}}}, "", "give seeds to the command instead"),
        ({"command": ["nowhere", "${args}"]}, "", "command: 'nowhere' cannot be started: No such file"),
        ({"command": ["${interpreter}", "nowhere.py"]}, "", "can't open file"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_run_here_is_one_line(
    small: Path, capsys: Any, changes: dict[str, Any], options: str, message: str
) -> None:
    write(small, **{**parameter(values=[1, 2]), **changes})
    assert main([str(small), *options.split()]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not Path("runs").exists()


def test_every_combination_runs_with_every_seed_in_a_folder_of_its_own(small: Path, capsys: Any) -> None:
    assert main([str(small), "--seeds", "0", "5", "0", "--", "--more", "--words=1"]) == 0
    runs = runs_of()
    assert set(runs) == {f"x={x}/seed{seed}" for x in (1, 2, 3) for seed in (0, 5)}
    assert {run["status"] for run in runs.values()} == {"finished"}
    (words,) = calls("x=2/seed5")
    assert words[:4] == ["--x=2", "--seed_everything=5", "--more", "--words=1"]
    assert runs["x=2/seed5"]["commands"][0][2:] == words[:4]
    assert Path("runs/small/x=2/seed5/sweep.log").read_text() == "out of paper\n"
    assert len(Path("runs/small/sweep.csv").read_text().splitlines()) == 7
    assert Path("runs/small/sweep.png").stat().st_size > 5000
    assert "20.00 (20.00-20.00)" in capsys.readouterr().out


def test_the_folder_has_the_files_name_and_rounds_that_are_not_validated_are_told(small: Path, capsys: Any) -> None:
    """Two run side by side: each waits for the other."""
    parameters = {"x": {"value": 1}, "trainer.max_rounds": {"values": [4, 7]}}
    assert main([str(write(small, name="named", parameters=parameters)), "--jobs", "2", "--", "--together"]) == 0
    assert sorted(runs_of("named")) == ["max_rounds=4,x=1/seed0", "max_rounds=7,x=1/seed0"]
    (line,) = capsys.readouterr().err.strip().splitlines()  # of 7 rounds alone
    said = "trainer.check_val_every_n_rounds: 2 does not divide trainer.max_rounds, 7: round 6 is compared"
    assert line == f"lit-fednas: {said}"


def test_a_failing_run_is_named_the_others_go_on_and_it_goes_on_from_its_checkpoint(small: Path, capsys: Any) -> None:
    assert main([str(small), "--", "--broken=1"]) == 1
    assert statuses() == ["failed", "finished", "finished"]
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == "lit-fednas: x=1/seed0 failed; see runs/small/x=1/seed0/sweep.log"
    before = Path("runs/small/sweep.json").read_text()
    assert main([str(small), "--", "--broken=2"]) == 2
    told = "runs/small/x=1/seed0 was begun with other options; remove it or give another --out"
    assert told in capsys.readouterr().err
    assert Path("runs/small/sweep.json").read_text() == before
    main([str(small), "--seeds", "0", "1", "--", "--broken=1"])
    assert [len(calls(f"x={x}/seed0")) for x in (1, 2, 3)] == [2, 1, 1]  # what is finished is left out
    first, second = calls("x=1/seed0")
    assert Path("runs/small/x=1/seed0/sweep.log").read_text() == 2 * "out of paper\n"
    assert second == [*first, "--ckpt_path=runs/small/x=1/seed0/checkpoints/last.ckpt"]
    main([str(write(small, parameters={"x": {"values": [3]}})), "--seeds", "2"])
    assert len(runs_of()) == 7  # the others are not forgotten


@pytest.mark.slow
def test_a_signal_ends_the_runs_and_a_new_start_goes_on(small: Path) -> None:
    words = [str(small), "--", "--forever"]
    script = subprocess.Popen([sys.executable, "-m", "lit_fednas", "sweep", *words], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not Path("runs/small/x=2/seed0/rounds.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    _, told = script.communicate(timeout=20)
    assert script.returncode == 130
    assert told.decode().strip() == "lit-fednas: stopped; the same command goes on"
    assert statuses() == ["finished", "stopped", "waiting"]
    assert main(words) == 0
    assert [len(calls(f"x={x}/seed0")) for x in (1, 2, 3)] == [1, 2, 1]


def test_a_run_finds_this_pythons_commands_and_its_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert environment(1)["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert environment(1)["WANDB_MODE"] == "offline"
    assert "OMP_NUM_THREADS" not in environment(1)
    assert environment(2)["OMP_NUM_THREADS"] == "4"
