"""Sweep files of Weights & Biases as studies, compared with W&B's own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeps.config import schema_violations_from_proposed_config
from sweeps.params import HyperParameter
from wandb import wandb_agent

from lit_fednas.cli import main
from lit_fednas.errors import ConfigError
from lit_fednas.studies import read_study
from lit_fednas.studies.reading import DISTRIBUTIONS, combination_names, combinations, distribution, expand
from tests.studies.conftest import calls, statuses
from tests.studies.test_presets import STUDIES
from tests.test_cli import overlaid

SWEEPS = {path.stem: path for path in STUDIES if "\ncommand:" in path.read_text()}


@pytest.fixture
def sweep(folder: Path) -> Callable[..., str]:
    """Writes a sweep file for the substitute of lit-fednas."""

    def written(**changes: Any) -> str:
        command = ["${env}", "${program}", "fit", "${args}"]
        content = {"method": "grid", "program": "lit-fednas", "command": command, **changes}
        content = {key: value for key, value in content.items() if value is not None}
        (folder / "small.yaml").write_text(yaml.safe_dump(content))
        return "small.yaml"

    return written


def agents_command(file: dict[str, Any], values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the command that W&B's agent starts for a combination; its files go to the working directory."""
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


def test_files_are_valid_for_wandb_and_give_its_agents_commands(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert SWEEPS
    for name, path in SWEEPS.items():
        content = yaml.safe_load(path.read_text())
        assert schema_violations_from_proposed_config(content) == []
        study = read_study(path, 3 if content["method"] == "random" else None)
        assert study.name == content["name"] == name
        for arm in study.arms.values():
            assert arm.command == agents_command(content, arm.parameters, monkeypatch)


def test_macros_are_expanded_as_by_wandbs_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOUSE", "small")
    values = {"a.b": 0.1, "flag": True, "no": False, "text": "x y", "list": [1, 2], "none": None}
    for macro in ("program", "args", "env", "interpreter", "envvar:HOUSE"):
        file = {"program": "program.py", "command": ["first", "${" + macro + "}", 3]}
        expected = agents_command(file, values, monkeypatch)
        assert expand(file["command"], "program.py", values) == expected
        assert "${" not in " ".join(expected)


@pytest.mark.parametrize("macro", ["${args}", "${args_no_equals}"])
def test_a_run_that_wandbs_agent_resumes_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, macro: str) -> None:
    """The agent then passes all keys of the run's configuration, including its own keys and groups of settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    command = ["${program}", "fit", *overlaid(tmp_path), macro]
    settings = {"trainer.max_rounds": 1, "model.client.batch_size": 16}
    file = {"program": "lit-fednas", "command": command}
    assert main(agents_command(file, settings, monkeypatch)[1:]) == 0
    run = Path("runs/digits/version_0")
    (run / "wandb-id.txt").write_text("abc")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["ckpt_path"] is config["privacy"] is None
    config["trainer"]["max_rounds"] = settings["trainer.max_rounds"] = 2  # the first start was stopped after round 1
    wandbs = {"_wandb": {"cli_version": "0.31.0", "t": {"1": [1, 5], "12": None}}}
    words = agents_command(file, {**settings, **wandbs, **config}, monkeypatch)
    assert "None" in " ".join(words)
    assert main(words[1:]) == 0
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in Path("runs/digits").iterdir()] == ["version_0"]


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


def test_more_draws_keep_the_earlier_ones() -> None:
    parameters = {"a": {"min": 0.0, "max": 1.0}, "b": {"min": 0.0, "max": 1.0}}
    draws = combinations("random", parameters, 50)
    assert combinations("random", parameters, 3) == draws[:3]
    assert combinations("random", parameters, 3, seed=1) != draws[:3]
    alone = combinations("random", {"b": parameters["b"]}, 3)
    assert [draw["b"] for draw in alone] == [draw["b"] for draw in draws[:3]]
    assert all(draw["a"] != draw["b"] for draw in draws)
    assert 0.35 < sum(draw["a"] for draw in draws) / 50 < 0.65


def test_folders_are_named_by_parameters() -> None:
    names = ["lr=0.12346,b=d_0_1_2", "lr=1e-07,b=None"]
    assert combination_names([{"a.lr": 0.123456789, "b": "d: [0,1]/2"}, {"a.lr": 1e-7, "b": None}]) == names
    with pytest.raises(ConfigError, match=r"two combinations have the name lr=0\.1;"):
        combination_names([{"a.lr": 0.1}, {"a.lr": 0.1000000001}])


def parameter(**settings: Any) -> dict[str, Any]:
    return {"parameters": {"x": settings}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (parameter(min=1, max=3), "parameters.x: int_uniform is not among constant, cat"),
        (parameter(values=[]), "parameters.x: {'values': []} has no valid value"),
        ({"early_terminate": {}}, "early_terminate: is not a key"),
        (
            {"metric": {"name": "val/largest/acuracy"}},
            "metric.name: acuracy: is not a metric; did you mean accuracy?",
        ),
        ({"metric": {"name": "clients/loss"}}, "metric.name: clients/loss is not a metric of networks; use"),
        (
            {"metric": {"name": "val/mean/loss", "goal": "maximize"}},
            "metric.goal: maximize selects the worst loss; write",
        ),
        ({"parameters": {"seed_everything": {"values": [0, 1]}}}, "give them to the command (--seeds 0 1)"),
        ({"command": ["nowhere", "${args}"]}, "command: 'nowhere' cannot be started: No such file"),
        ({"command": ["${interpreter}", "nowhere.py"]}, "can't open file"),
        ({"program": None}, "program: missing; the command needs it"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_invalid_sweeps_are_errors_of_one_line(sweep: Any, refused: Any, changes: dict[str, Any], message: str) -> None:
    assert message in refused("study", sweep(**{**parameter(values=[0.1, 0.2]), **changes}))
    assert not Path("runs/small").exists()


def test_a_files_command_runs_for_every_combination_and_seed(sweep: Any, capsys: Any) -> None:
    """Two runs at the same time: each waits for the other."""
    words = [sweep(**parameter(values=[0.1, 0.2])), "--seeds", "0", "5", "--jobs", "2", "--", "--together"]
    assert main(["study", *words]) == 0
    assert statuses() == {f"x={x}/seed{seed}": "finished" for seed in (0, 5) for x in (0.1, 0.2)}
    (words,) = calls("x=0.2/seed5")
    assert words[:-1] == ["fit", "--x=0.2", "--seed_everything=5", "--together"]
    assert "  20.0  " in capsys.readouterr().out
