"""The package's studies: the command line accepts all their commands."""

from __future__ import annotations

import re

import pytest
from jsonargparse import Namespace

from lit_fednas.config_files import FOLDER, find
from lit_fednas.studies import Study, read_study
from tests.test_configs import parsers_of

STUDIES = sorted([*FOLDER.glob("studies/*.yaml"), *FOLDER.glob("reproduction/*.yaml")])


def parsed(name: str, commands: list[list[str]]) -> Namespace:
    """Parses the words of several command lines of one command as one line."""
    line = [str(find(word)) if word.endswith(".yaml") else word for words in commands for word in words[1:]]
    return parsers_of(name)[name].parse_args(line)


def kept(name: str) -> Study:
    """Returns a study, with three draws if it is random."""
    (path,) = [path for path in STUDIES if path.stem == name]
    return read_study(path, 3 if "\nmethod: random" in path.read_text() else None)


def commands(study: Study) -> list[list[str]]:
    all_commands = [command for label in study.arms for command in study.commands(label, 0)]
    return [command[command.index("lit-fednas") + 1 :] for command in all_commands]


def test_a_draw_is_taken_with_its_values() -> None:
    study = kept("random")
    *_, arm = study.arms.values()
    namespace = parsed("fit", commands(study)[-1:])
    for name, value in arm.parameters.items():
        part, _, field = name.rpartition(".")
        assert (namespace[name] if name in namespace else namespace[f"{part}.init_args.{field}"]) == value


@pytest.mark.slow
def test_the_command_line_takes_every_setting_of_every_study() -> None:
    """Parses only commands with a new word, apart from numbers; commands after training come first."""
    order = ("finetune", "search", "fit", "test")
    by_command: dict[str, list[list[str]]] = {name: [] for name in order}
    seen: set[str] = set()
    all_commands = [words for path in STUDIES for words in commands(kept(path.stem))]
    for words in sorted(all_commands, key=lambda words: order.index(words[0])):
        kinds = {re.sub(r"=-?\d[\d.e+-]*$", "=number", word) for word in words}
        if kinds - seen:
            by_command[words[0]].append(words)
            seen |= kinds
    for name, commands_of_name in by_command.items():
        assert parsed(name, commands_of_name)
