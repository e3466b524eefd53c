"""Studies: runs, resumed runs, comparisons and errors."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lit_fednas.cli import main
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.records.files import FolderLock
from lit_fednas.studies import read_study
from lit_fednas.studies.jobs import environment
from tests.studies.conftest import calls, statuses
from tests.support import waited

TIERS = {"small": {"macs": 10}, "big": {"macs": "4e1"}}
SEARCHED = {"A": {"options": {"x": 0.5}, "then": [{"search": {"evaluations": 4}}]}, "B": {"options": {"x": 0.25}}}


def test_arms_run_with_every_seed_and_are_compared_at_the_tiers(write, capsys) -> None:
    compared = {"tiers": TIERS, "then": ["test"], "arms": SEARCHED, "compare": {"targets": [0.3]}}
    assert main(["study", write(**compared), "--jobs", "2", "--", "--more=1"]) == 0
    fit, search = calls("A/seed1")
    settings = ["--config", "common.yaml", "--data.num_clients=5", "--x=0.5", "--seed_everything=1", "--more=1"]
    assert fit[:-1] == ["fit", *settings]
    assert search[: len(fit) - 1] == ["search", *settings]
    tiers, evaluations, _, checkpoint = search[len(fit) - 1 :]
    budgets = {"small": {"macs": 10.0}, "big": {"macs": 40.0}}
    expected = {"class_path": "lit_fednas.tiers.Budgets", "init_args": {"budgets": budgets}}
    assert json.loads(tiers.removeprefix("--search.tiers=")) == expected
    assert evaluations == "--search.evaluations=4"
    assert checkpoint == "--ckpt_path=runs/small/A/seed1/checkpoints/last.ckpt"
    assert [words[0] for words in calls("B/seed0")] == ["fit", "test"]
    assert Path("runs/small/A/seed0/study.log").read_text() == 2 * "out of paper\n"

    table = pd.read_csv("runs/small/compare.csv")
    means = table.groupby(["tier", "method"], sort=False)["test"].mean()
    assert list(means.index) == [(tier, method) for tier in ("small", "big") for method in ("A", "B")]
    assert means.tolist() == pytest.approx([0.5, 0.25, 0.6, 0.35])
    assert table["spent_bytes"].eq(5).all()
    printed = capsys.readouterr().out
    assert printed.index("checking: 4 commands") < printed.index("running: A/seed0, command 1 of 2")
    assert "written in runs/small: compare.md, compare.png, compare.html, compare.csv, targets.csv" in printed


def test_a_stopped_study_resumes_and_takes_more_arms_and_commands(write, capsys, refused) -> None:
    once = ("--seeds", "0", "--", "--broken=search")
    content = {"then": ["test"], "arms": SEARCHED, "compare": {}}
    for _ in range(2):
        assert main(["study", write(**content), *once]) == 1
    assert [words[0] for words in calls("A/seed0")] == ["fit", "search", "search"]
    assert "A/seed0 failed; see runs/small/A/seed0/study.log" in capsys.readouterr().err
    assert [words[0] for words in calls("B/seed0")] == ["fit", "test"]  # finished
    state = Path("runs/small/study.json").read_text()
    assert hashlib.sha256(state.encode()).hexdigest() in Path("runs/small/SHA256SUMS").read_text()
    invalid_arm = {**SEARCHED["A"], "then": [{"search": {"evaluations": 4}}, {"finetune": {"rounds": "unknown"}}]}
    line = refused("study", write(**{**content, "arms": {**SEARCHED, "A": invalid_arm}}), *once)
    assert "finetune.rounds: unknown is not a number" in line  # an error before any command starts
    line = refused("study", write(**{**content, "options": {"y": 1}}), *once)
    assert "runs/small/A/seed0 was started with other options; remove it or" in line
    assert Path("runs/small/study.json").read_text() == state
    shutil.rmtree("runs/small/A/seed0")
    assert main(["study", write(**{**content, "options": {"y": 1}}), "--arms", "A", *once]) == 1
    assert [words[0] for words in calls("A/seed0")] == ["fit", "search"]  # it starts again
    assert main(["study", write(**{**content, "arms": {**SEARCHED, "C": SEARCHED["B"]}}), "--arms", "C", *once]) == 0
    table = pd.read_csv("runs/small/compare.csv")
    assert table["method"].unique().tolist() == ["B", "C"]  # B of the earlier start; A has not finished
    assert statuses() == {"A/seed0": "failed", "B/seed0": "finished", "C/seed0": "finished"}


def test_a_second_start_on_a_folder_is_refused(write, refused) -> None:
    lock = FolderLock(Path("runs/small"))
    assert "out: another process writes into runs/small; wait for it" in refused("study", write())
    lock.release()
    assert main(["study", write(), "--seeds", "0"]) == 0


def test_an_arm_that_is_never_validated_has_no_curve(write, capsys) -> None:
    arms = {"A": {"options": {"x": 0.5}}, "B": {"options": {"x": 0.25, "trainer.max_rounds": 1}}}
    assert main(["study", write(arms=arms, compare={}), "--seeds", "0"]) == 0
    printed = capsys.readouterr()
    assert "No curve, as a run has logged no validation while it trained: B." in printed.out
    assert set(pd.read_csv("runs/small/compare.csv")["method"]) == {"A", "B"}
    assert set(pd.read_csv("runs/small/curves.csv")["method"]) == {"A"}


@pytest.mark.parametrize("has_own_part", [False, True])
def test_an_unknown_metric_is_refused_without_a_users_own_part(write, capsys, has_own_part) -> None:
    options = {"x": 1, **({"part": "mine.Part"} if has_own_part else {})}
    status = main(["study", write(options=options, measures={"end": {"metric": "val/largest/acuracy"}}), "--seeds=0"])
    assert status == (0 if has_own_part else 2)
    message = "measures.end.metric: val/largest/acuracy: is not logged; did you mean accuracy?"
    assert (message in capsys.readouterr().err) is not has_own_part


def test_an_arm_runs_after_the_arm_that_it_reads(write, capsys, refused) -> None:
    finetune = {"name": "from scratch", "initial": "random", "configs": ["f.yaml"]}
    reading = {"configs": ["${seed}.yaml"], "options": {"x": 1, "run": "${A, large}/x"}, "tiers": ["big"]}
    reading["then"] = ["search", {"finetune": finetune}]
    content = {"arms": {"A, large": {"options": {"x": 0.5}}, "C": reading}, "tiers": TIERS, "seeds": [3]}
    study = read_study(write(**content))
    fit, search, finetuning = study.commands("C", 3)
    assert fit[3] == "3.yaml"
    assert "--run=runs/small/A_large/seed3/x" in fit
    (tiers,) = [json.loads(word.partition("=")[2]) for word in search if word.startswith("--search.tiers=")]
    assert tiers["init_args"]["budgets"] == {"big": {"macs": 40.0}}
    assert finetuning[-5:-2] == ["--config", "f.yaml", "--seed_everything=3"]
    assert finetuning[-2:] == ["--finetune.name=from_scratch", "--finetune.initial=random"]
    line = refused("study", "small.yaml", "--arms", "C")
    assert "arms: C reads A_large/seed3, which does not exist; add its arm and seed" in line
    assert main(["study", "small.yaml", "--arms", "C", "--show"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[0]) == fit
    assert main(["study", "small.yaml", "--jobs", "2", "--", "--broken=0.5"]) == 1
    assert statuses() == {"A_large/seed3": "failed", "C/seed3": "waiting"}
    assert "C/seed3 was not started: it reads a run that failed" in capsys.readouterr().err


def test_the_seed_and_the_tiers_of_a_study_override_a_searchs_file(write) -> None:
    search = {"search": {"configs": ["s.yaml"], "evaluations": 4}}
    study = read_study(write(arms={"A": {"then": [search], "tiers": [1]}}, tiers={1: {"macs": 10}, 2: {"macs": 40}}))
    _, words = study.commands("A", 3)
    names = [word.partition("=")[0] for word in words[words.index("s.yaml") :]]
    assert names == ["s.yaml", "--seed_everything", "--search.tiers", "--search.evaluations"]
    assert json.loads(words[-2].partition("=")[2])["init_args"]["budgets"] == {"1": {"macs": 10.0}}
    # a search with another name is not compared
    others = {"search": {"name": "eight", "tiers.init_args.budgets": {"t": {"macs": 20}}}}
    assert len(read_study(write(then=[others], tiers=TIERS)).commands("B", 0)) == 2


def test_a_configuration_can_name_a_step(write, refused) -> None:
    """The step's option decides, then the last file with a name. A measure needs the folder of a step."""
    for name, content in (("one", {"finetune": {"name": "one"}, "search": {}}), ("two", {"finetune.name": "two"})):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(content))
    steps = [{}, {"configs": ["one.yaml", "two.yaml"]}, {"configs": ["one.yaml"], "name": "own"}]
    measures = {name: {"table": f"{name}/tiers.csv", "column": "x"} for name in ("finetune", "two", "own")}
    content = {"arms": {"A": {"then": [{"finetune": step} for step in steps]}}}
    study = read_study(write(**content, measures=measures))
    assert [step.name for step in study.arms["A"].then] == ["finetune", "two", "own"]
    assert "one: is not" in refused(
        "study", write(**content, measures={"m": {"table": "one/tiers.csv", "column": "x"}})
    )
    for invalid in (3, [None]):
        line = refused("study", write(arms={"A": {"then": [{"search": {"configs": invalid}}]}}))
        assert f"arms.A.then[0].search.configs: {invalid} is not a list of files; write [...]" in line


def test_parameters_make_an_arm_of_every_combination(write, capsys) -> None:
    parameters = {"x": {"values": [0.1, 0.2]}, "trainer.max_rounds": {"values": [4, 7]}}
    assert main(["study", write(arms=None, parameters=parameters), "--seeds", "0", "5", "--jobs", "4"]) == 0
    assert len(statuses()) == 8
    (words,) = calls("x=0.2,max_rounds=7/seed5")
    assert words[3:6] == ["--data.num_clients=5", "--x=0.2", "--trainer.max_rounds=7"]
    printed = capsys.readouterr()
    assert "  20.0  " in printed.out
    assert len(pd.read_csv("runs/small/compare.csv")) == 8
    arms = read_study(write(arms={"A": None, "B": None}, parameters=parameters)).arms
    assert len(arms) == 8
    assert arms["B, x=0.1,max_rounds=4"].parameters == {"arm": "B", "x": 0.1, "trainer.max_rounds": 4}


@pytest.mark.slow
def test_a_signal_ends_the_runs_and_a_new_start_resumes_them(write) -> None:
    words = [write(seeds=[0]), "--", "--forever=0.25"]
    program = "from lit_fednas.studies import jobs, runs"
    program += "; runs.environment = jobs.environment = lambda jobs: {**os.environ, 'PATH': sys.argv[1]}"
    program += "; runs.CHECK = ['lit-fednas', 'check']"
    script = f"import os, sys; {program}; from lit_fednas.cli import main; sys.exit(main(['study', *sys.argv[2:]]))"
    path = f"{Path('bin').absolute()}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen([sys.executable, "-c", script, path, *words], stderr=subprocess.PIPE)
    waited(Path("runs/small/B/seed0/rounds.jsonl").exists)
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=20)
    assert process.returncode == 130
    assert message.decode().strip() == "lit-fednas: stopped; the same command resumes the study"
    assert statuses() == {"A_large/seed0": "finished", "B/seed0": "stopped"}
    assert main(["study", *words]) == 0
    assert [len(calls(f"{arm}/seed0")) for arm in ("A_large", "B")] == [1, 2]
    assert calls("B/seed0")[1] == [*calls("B/seed0")[0], "--ckpt_path=runs/small/B/seed0/checkpoints/last.ckpt"]


def test_the_environment_has_this_pythons_commands_and_a_share_of_cores(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert environment(1)["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert environment(1)["WANDB_MODE"] == "offline"
    assert "OMP_NUM_THREADS" not in environment(1)
    assert environment(2)["OMP_NUM_THREADS"] == "4"
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert "SLURM_JOB_ID" not in environment(1)  # otherwise Lightning requeues the job, in addition to the study


@pytest.mark.parametrize(
    "text", ['{"runs": [', "[1]", '{"runs": 3}', '{"runs": [3]}', '{"runs": [{"seed": 1}]}', "null"]
)
def test_a_damaged_study_is_one_line_that_names_the_file(write, refused, text) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/study.json").write_text(text)
    assert "runs/small/study.json: is damaged (" in refused("study", write())


@pytest.mark.parametrize("text", ["arm\nA\n", "experiment,arm,seed,measure,value\nsmall,A,0,minutes,much\n", "\0"])
def test_damaged_results_are_one_line_that_names_the_file(write, refused, text) -> None:
    Path("results.csv").write_text(text)
    assert "results.csv: is damaged (" in refused("study", write(**claiming()), "--judge", "--results", "results.csv")


def test_arms_that_are_named_twice_run_once(write, capsys) -> None:
    assert main(["study", write(), "--arms", "B", "B", "--seeds", "1", "--show"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


CLAIM = {"paper": "X", "where": "1", "claim": "better", "result": ["A", "minutes"]}


def measuring(**arguments: Any) -> dict[str, Any]:
    return {"measures": {"end": arguments}}


def claiming(**changes: Any) -> dict[str, Any]:
    return {"arms": SEARCHED, "claims": [{**CLAIM, **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {}}, "arms: missing; name at least one"),
        ({"arms": {"A": {"config": ["a.yaml"]}}}, r"arms.A: config: is not a key; did you mean configs\?; choose"),
        ({"arms": {"A": {"configs": "a.yaml"}}}, "arms.A.configs: a.yaml is not a list"),
        ({"arms": {"A": {"options": {"model": {}}}}}, "arms.A.options.model: is a group; give each option"),
        ({"arms": {"A": {"then": ["serch"]}}}, r"arms.A.then\[0\]: serch: is not a command .* did you mean search"),
        ({"arms": {"A": {"tiers": ["huge"]}}, "tiers": TIERS}, "arms.A.tiers: huge: is not a tier; choose from small"),
        ({"arms": {"A": {"options": {"run": "${B}"}}}}, r"arms.A: \$\{B\}: is not an arm before it"),
        (
            {"then": [{"search": {"tiers": None}}], "tiers": TIERS},
            "search.tiers: conflicts with the study's tiers; remove",
        ),
        (
            {"arms": {"A": {"options": {"search.tiers.init_args.budgets": {}}}}, "tiers": TIERS},
            "arms.A.search.tiers.init_args.budgets: conflicts with the study's tiers",
        ),
        ({"name": False}, "name: yes, no, on and off are true and false in YAML"),
        ({"arms": {"A b": {}, "a, b": {}}}, "arms: 'A_b' and 'a_b' are one folder, at least on some"),
        ({"tiers": {"a": {"macs": 1}, "A": {"macs": 1}}}, "tiers: 'a' and 'A' are one folder"),
        ({"then": [{"search": {"name": "checkpoints"}}]}, r"then\[0\].search.name: 'checkpoints' cannot name"),
        ({"arms": {"A": {}}, "configs": None}, "arms.A.configs: missing"),
        ({"seeds": ["0"]}, r"seeds: '0' is not a number from 0 to 2\^32 - 1"),
        ({"seeds": [2**32]}, "seeds: 4294967296 is not a number from 0"),
        ({"seeds": [1, 0, 1]}, "seeds: 1 is duplicated; give each seed once"),
        ({"seeds": []}, "seeds: is empty; give at least one"),
        (
            {"parameters": {name: {"values": list(range(100))} for name in "abcd"}},
            "parameters: 100,000,000 combinations",
        ),
        ({"compare": {"macs": -1}}, "compare: macs: -1.0 must be above 0"),
        ({"compare": {"target": 1}}, r"compare: target: is not an option; did you mean targets\?"),
        (measuring(metrics="x"), r"measures.end: metrics: is not a key; did you mean metric\?"),
        (measuring(ledger="bytes"), "measures.end.ledger: bytes: is not counted; did you mean bytes"),
        (
            measuring(table="a.csv", column="x", statistic="var"),
            "measures.end.statistic: var: is not a statistic; choose",
        ),
        (measuring(metric="x", row={"tier": "a"}), r"measures.end.row: \{'tier': 'a'\} is not for metric"),
        (measuring(metric="x", target=0.5, last=2), "measures.end.last: 2 has no effect with target"),
        (measuring(metric="x", ledger="macs"), "measures.end: has the sources metric and ledger; give one"),
        (measuring(), r"measures.end: has the sources \(none\); give one of metric, table, ledger, tau"),
        (measuring(table="a.csv"), "measures.end.column: missing; name a column of a.csv"),
        (measuring(table="search/tiers.csv", column="x"), "search: is not the folder of a search or a fine-tuning"),
        (claiming(result=["C", "minutes"]), r"claims\[0\].result: C: is not an arm; choose from A, B"),
        (claiming(baseline=["A", "end"]), r"claims\[0\].baseline: end: is not a measure; choose from minutes"),
        (claiming(effect="sum"), r"claims\[0\].effect: is not difference or ratio"),
        ({"method": "bayes", "parameters": {"x": {"value": 1}}}, "method: bayes needs W&B's server"),
        ({"method": "grid"}, "parameters: missing"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:30],
)
def test_invalid_studies(write, changes, message) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        read_study(write(**changes))


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ("--seeds 0 0", {}, "seeds: 0 is duplicated"),
        ("", {"seeds": [*range(10**4)]}, "seeds: make 20,000 runs of all arms; give at most 10,000"),
        ("--arms A,larg", {}, "arms: A,larg: is not an arm; did you mean A, large?; choose from A, large, B"),
        ("", {"arms": None, "method": "random", "parameters": {"x": {"min": 0.0, "max": 1.0}}}, "count: missing for a"),
        ("--count 3", {}, "count: 3 is for a study with method: random"),
        ("--judge", {}, "runs/small: no run has finished"),
    ],
)
def test_invalid_options_of_the_command(write, refused, words, changes, message) -> None:
    assert message in refused("study", write(**changes), *words.split())
