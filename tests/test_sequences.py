"""Sequences of commands, drawn at random: records stay, nothing ends in a traceback, and each printed command works.

The suite draws a few sequences. ``LIT_FEDNAS_SEQUENCES=100 scripts/test tests/test_sequences.py`` draws more.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import wandb
import yaml

from lit_fednas.cli import main
from tests.support import SMALL

SEQUENCES, LENGTH = int(os.environ.get("LIT_FEDNAS_SEQUENCES", "2")), 7
DIGITS = Path(__file__).parents[1] / "configs" / "superfed" / "digits.yaml"
OWN = "from lit_fednas.objectives import CrossEntropy\n\n\nclass {name}(CrossEntropy):\n    pass\n"
SEARCH = ["--search.tiers", "EvenBudgets", "--search.tiers.count", "2", "--search.evaluations", "3"]
SEARCH += ["--search.method.init_args.population", "3"]
#: Files that a command may replace: pages, pictures, the latest tables and states, and checksums.
REPLACED = {"config.yaml", "report.html", "SHA256SUMS", "last.ckpt", "pareto.png", "ledger.json", "settings.json"}
REPLACED |= {"network.pt2", "wandb-id.txt", "compare.html", "compare.png"}
#: A command, or options of the refused command, in the remedy of an error.
COMMAND = re.compile(r"lit-fednas (\w+)(?: with)?((?: --[\w.]+ [^\s,;()']+)*)")
OPTION = re.compile(r"(--[\w.]+) ([^\s,;()]+|'[^']*')")


class Project:
    """A folder with a configuration, a module of its objective, and the runs that commands make."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng, self.log = root, random.Random(seed), list[str]()
        self.name = f"own_{seed}"  # modules stay imported
        (root / "settings").mkdir()
        (root / "elsewhere").mkdir()
        folder = root / "settings" if self.rng.random() < 0.5 else root
        (folder / f"{self.name}.py").write_text(OWN.format(name="OwnLoss"))
        objective = (
            {"class_path": f"{self.name}.OwnLoss"} if self.rng.random() < 0.5 else {"class_path": "CrossEntropy"}
        )
        settings = {**SMALL, "model": {**SMALL["model"], "objective": objective}}
        if self.rng.random() < 0.3:
            wandb = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True}}
            settings["trainer"] = {**SMALL["trainer"], "logger": [SMALL["trainer"]["logger"], wandb]}
        if self.rng.random() < 0.3:
            settings["trainer"] = {**settings["trainer"], "callbacks": [{"class_path": "LearningRateMonitor"}]}
        self.config = folder / "own.yaml"
        self.config.write_text(yaml.safe_dump(settings))

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.root.glob("runs/digits/*/rounds.jsonl"))

    def draw(self) -> list[str]:
        """Returns the words of a command that a user may type next, in the folder of the runs or another."""
        runs = self.runs()
        os.chdir(self.root)
        if not runs or self.rng.random() < 0.15:
            return self.fit()
        os.chdir(self.rng.choice([self.root, self.root, self.root / "elsewhere"]))
        run = self.rng.choice(runs)
        rounds = len((run / "rounds.jsonl").read_text().splitlines())
        config = ["--config", os.path.relpath(run / "config.yaml")]
        searches = [path.parent.name for path in run.glob("search*/settings.json")]
        name = self.rng.choice([*searches, "search"])
        tiers = [path.name for path in run.glob(f"{name}/tiers/*")] or ["budget01"]
        label = self.rng.choice(["finetune", "tuned"])
        resumed = ["fit", *config, "--ckpt_path", "last", "--trainer.max_rounds", str(rounds + 1)]
        search = ["search", *config, *SEARCH, "--search.name", name]
        finetune = ["finetune", *config, "--finetune.rounds", "1", "--finetune.search", name, "--finetune.name", label]
        export = ["export", *config, "--name", name, "--tier", self.rng.choice(tiers)]
        commands = [resumed, resumed, search, search, finetune, export]
        other = ["--model.evaluation.subnets", "['middle = d: [1,1,1,1], e: 0.25', smallest]"]
        commands += [["validate", *config, *other], ["test", *config], ["report", str(run)]]
        commands += [["compare", *map(str, runs)], ["runs", str(run.parent)]]
        return self.rng.choice(commands)

    def fit(self) -> list[str]:
        rounds = str(self.rng.choice([1, 2]))
        return [
            "fit",
            "--config",
            str(DIGITS),
            "--config",
            os.path.relpath(self.config),
            "--trainer.max_rounds",
            rounds,
        ]

    # ---- running a command ------------------------------------------------------------------------------

    def run(self, words: list[str]) -> tuple[int, str, str]:
        """Runs a command and checks the records; returns its status, its output and its error."""
        self.log.append(shlex.join(words))
        contents = {path: path.read_bytes() for path in self.files()}
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(words)
        self.check(contents)
        wandb.finish()  # the end of a process does the same
        return status, out.getvalue(), err.getvalue()

    def files(self) -> Iterator[Path]:
        excluded = {"wandb", "clients"}  # W&B's files, and files that a checkpoint refers to
        yield from (path for path in self.root.glob("runs/**/*") if path.is_file() and not excluded & {*path.parts})

    def check(self, contents: dict[Path, bytes]) -> None:
        for path, content in contents.items():
            assert path.is_file(), f"{path} is gone"
            present = path.read_bytes()
            if path.name == "metrics.csv":
                assert rows_of(present)[: len(rows_of(content))] == rows_of(content), path
            elif path.name in ("rounds.jsonl", "evaluations.csv"):
                assert present.startswith(content), path
            elif path.name == "ledger.json":
                old, new = (json.loads(text).get("after_training") or {} for text in (content, present))
                assert old.items() <= new.items(), path
            elif path.name.startswith("subnets-"):
                assert {row["subnet"] for row in rows_of(content)} <= {row["subnet"] for row in rows_of(present)}, path
            elif path.name not in REPLACED:
                assert present == content, path
        for sums in self.root.glob("runs/**/SHA256SUMS"):
            for line in sums.read_text().splitlines():
                digest, name = line.split("  ")
                assert hashlib.sha256((sums.parent / name).read_bytes()).hexdigest() == digest, sums.parent / name

    def follow(self, words: list[str], depth: int = 0) -> None:
        """Runs a command; each command that it prints, or the remedy of its error, must work as printed."""
        status, out, err = self.run(words)
        if status == 0:
            for line in re.findall(r"^(?:next:|or:) +lit-fednas (.*)$", out, re.MULTILINE) if depth == 0 else []:
                printed = shlex.split(line)
                printed += [*SEARCH[4:]] if printed[0] == "search" else []  # a few seconds, not minutes
                assert self.run(printed)[0] == 0, (line, self.log)
            return
        assert status == 2, (status, err)
        error = [line for line in err.splitlines() if line.startswith("lit-fednas: ")][-1]
        assert depth < 3, error
        if error.endswith("; give one"):  # two runs have the same seed
            self.follow(words[:2], depth + 1)
            return
        commands = [(name, options.split()) for name, options in COMMAND.findall(error)]
        assert commands or OPTION.search(error), f"no remedy that can be run: {error}"
        config = words[1 : words.index("--config") + 2]
        for name, options in commands:
            self.follow([name, *config, *(SEARCH if name == "search" else []), *options], depth + 1)
        alternatives = OPTION.findall(COMMAND.sub("", error))
        replacements = {option: value.strip("'") for option, value in reversed(alternatives)}  # the first of each
        self.follow(with_options(words, replacements), depth + 1)


def with_options(words: list[str], options: dict[str, str]) -> list[str]:
    """Returns a command with options that replace those of the same name."""
    words = [*words]
    for option, value in options.items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


def rows_of(content: bytes) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(content.decode()))
    return [{name: cell for name, cell in row.items() if cell} for row in rows]


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_commands_keep_records_and_print_what_works(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    project = Project(tmp_path, seed)
    try:
        for _ in range(LENGTH):
            project.follow(project.draw())
    except BaseException as error:
        error.add_note("\n".join(["the commands were:", *project.log]))
        raise
