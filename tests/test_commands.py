"""The table of commands, and the commands that start without Lightning."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import lit_fednas
from lit_fednas.cli import main
from lit_fednas.cli.commands import COMMANDS, LIGHT, TRAINING, Command
from lit_fednas.cli.entry import exit_status
from lit_fednas.config_files import names
from lit_fednas.errors import DataError

ROOT = Path(lit_fednas.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
HEAVY = {"torch", "lightning", "torchmetrics", "pymoo", "sklearn"}
#: Packages that neither training nor Lightning needs.
UNUSED = {"flwr", "IPython", "jinja2", "pymoo", "wandb"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_docstrings_say(name):
    target = COMMANDS[name].load()
    if name in TRAINING:
        target = getattr(target, COMMANDS[name].method)
    assert inspect.getdoc(target).partition("\n")[0] == COMMANDS[name].summary


def errors_of(script: str, folder: Path) -> str:
    """Returns a script's error output from another process, since this one has imported all modules."""
    words = [sys.executable, "-c", script]
    process = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_light_commands_import_no_lightning(tmp_path):
    uses = [["--help"], ["--version"], ["serch"], *([*name.split(), "--help"] for name in LIGHT), ["report", "nowhere"]]
    script = f"""
import contextlib, os, sys
from lit_fednas.cli import main
for words in {uses}:
    with contextlib.suppress(SystemExit):
        main(words)
    found = {HEAVY} & sys.modules.keys()
    if found:
        sys.exit(f"{{words}} imports {{found}}")
"""
    assert "nowhere: is not a run" in errors_of(script, tmp_path)


def test_training_imports_only_what_it_uses(tmp_path):
    script = f"""
import sys
from lit_fednas.cli import main
words = ["fit", "--config", "superfed/digits.yaml", "--trainer.max_rounds", "1"]
assert main(words) == 0
found = {UNUSED} & sys.modules.keys()
if found:
    sys.exit(f"fit imports {{found}}")
"""
    assert "loading" not in errors_of(script, tmp_path)  # the output is not a terminal


def test_a_reader_that_has_seen_enough(tmp_path):
    words = [sys.executable, "-m", "lit_fednas", "configs"]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ours:
        ours.stdout.close()
        assert ours.stderr.read() == b""
    assert ours.returncode == 0


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    command_names = [re.split(r" {2,}", line)[1] for line in lines if line.startswith("  ") and line[2].isalpha()]
    assert command_names == list(COMMANDS)
    assert main([]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serch"], "serch: is not a command; did you mean search?; lit-fednas --help lists them"),
        (["report", "x", "--otput", "y"], "unrecognized arguments: --otput y; did you mean output? (lit-fednas report"),
    ],
)
def test_wrong_words_are_one_clear_line(refused, words, message):
    assert message in refused(*words)


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("se", {"search"}),
        ("hub pu", {"push", "pull"}),
        ("fit --config own.yaml --trainer.max_r", {"--trainer.max_rounds"}),
        ("study own.yaml --seeds 0 1 --ju", {"--judge"}),
        ("report o", {"own.yaml", "others"}),
        ("fit --config o", {"own.yaml", "others"}),
        ("fit --config ", {"own.yaml", "others", *(f"{name.split('/')[0]}/" for name in names())}),
        ("search --config own.yaml --config recommended/t", {"recommended/table.yaml", "recommended/text.yaml"}),
    ],
)
def test_bash_completes_commands_options_and_configurations(completed, line, candidates):
    assert completed(line) == candidates


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """Returns bash's candidates at the end of a line, in a folder with a file and a folder."""
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("completion")
    (folder / "own.yaml").touch()
    (folder / "others").mkdir()
    with (folder / "others" / "script").open("w") as script, redirect_stdout(script), pytest.raises(SystemExit):
        main(["completion", "bash"])
    ask = 'source others/script; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _shtab_lit_fednas; echo "${COMPREPLY[@]}"'

    def candidates(line: str) -> set[str]:
        words = ["bash", "-c", ask, "bash", "lit-fednas", *line.split(" ")]
        return set(subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.split())

    return candidates


def measure(names: list[str], *words: str, limit: float | None = None, sizes: list[int] | None = None) -> int | None:
    """Measures some things.

    More about it.

    Args:
        names: The names.
        *words: More words.
        limit: The limit.
        sizes: The sizes.
    """
    if limit == 0:
        raise DataError("limit: 0 is too little; give more")
    print(names, words, limit, sizes)
    return 3 if limit else None


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.setitem(LIGHT, "do measure", Command("tests.test_commands", "measure"))
    monkeypatch.setitem(COMMANDS, "do measure", LIGHT["do measure"])


def test_a_function_is_a_command(measuring, capsys):
    """Arguments without a default are positional, lists take several words, and words after -- are passed on."""
    assert main(["do", "measure", "a=1", "b", "--sizes", "3", "4", "--limit", "0.5", "--", "--sizes", "5"]) == 3
    assert capsys.readouterr().out == "['a=1', 'b'] ('--sizes', '5') 0.5 [3, 4]\n"
    assert main(["do", "measure", "a"]) == 0
    assert capsys.readouterr().out == "['a'] () None None\n"
    with pytest.raises(SystemExit) as end:
        main(["do", "measure", "--help"])
    assert end.value.code == 0
    assert "The limit." in capsys.readouterr().out
    assert main(["do", "measure", "a", "--limit", "0"]) == 2
    assert capsys.readouterr().err == "lit-fednas: limit: 0 is too little; give more\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 7 TiB"),
        RuntimeError("can't allocate memory: 9 bytes"),
        RuntimeError("Storage size calculation overflowed"),
    ],
)
def test_spent_memory_is_one_line(capsys, error):
    def spend():
        raise error

    assert exit_status(spend) == 2
    assert capsys.readouterr().err == f"lit-fednas: memory: {error}; give smaller sizes\n"
