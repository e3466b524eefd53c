"""The sweep files, arenas and experiments that are kept here: the command line takes every command of them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import Namespace

from lit_fednas.analysis.findings import read_experiment
from lit_fednas.config_files import find
from lit_fednas.lightning_cli import FederatedCLI
from lit_fednas.sweeps.arena_file import read_arena
from lit_fednas.sweeps.macros import expand
from lit_fednas.sweeps.sweep_file import combinations, read_sweep_file

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "configs/sweeps").glob("*.yaml"))
ARENAS = sorted(path for path in (ROOT / "configs/arenas").glob("*.yaml") if "common" not in path.stem)
EXPERIMENTS = sorted((ROOT / "configs/findings/experiments").glob("*.yaml"))
COUNTS = {
    "alpha": 3,
    "fedtrans_figure10": 15,
    "fedtrans_figure11": 9,
    "fedtrans_figure12": 6,
    "fedtrans_figure13": 5,
    "fedtrans_figure8": 2,
    "learning_rate": 4,
    "random": 5,
    "superfed_figure5": 12,
}


class OnlyParses(FederatedCLI):
    """Parses many command lines of one command, which takes less than making as many parsers, and goes no further."""

    def __init__(self, commands: list[list[str]]) -> None:
        self.commands = commands
        super().__init__(commands[0][:1])

    def parse_arguments(self, parser: Any, args: Any) -> None:
        raise Parsed([parser.parse_args(words) for words in self.commands])


class Parsed(Exception):
    """The namespaces."""


def parsed(commands: list[list[str]]) -> list[Namespace]:
    with pytest.raises(Parsed) as caught:
        OnlyParses([[str(find(word)) if word.endswith(".yaml") else word for word in words] for words in commands])
    return caught.value.args[0]


def last(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A sweep's last combination and its command's words."""
    file = read_sweep_file(path)
    found = combinations(file, 5 if file["method"] == "random" else None)
    assert len(found) == COUNTS[path.stem]
    words = expand(file["command"], file["program"], found[-1])
    assert words[:3] == ["/usr/bin/env", "lit-fednas", "fit"]
    return found[-1], words[2:]


def setting(namespace: Namespace, name: str) -> object:
    """Returns a setting, also of a part that is chosen by its class."""
    part, _, field = name.rpartition(".")
    return namespace[name] if name in namespace else namespace[f"{part}.init_args.{field}"]


def test_all_files_are_found() -> None:
    assert [path.stem for path in SWEEPS] == list(COUNTS)
    assert ARENAS
    assert EXPERIMENTS


@pytest.mark.parametrize(
    "names", [["random"], pytest.param(list(COUNTS), marks=pytest.mark.slow)], ids=["drawn", "all"]
)
def test_the_command_line_takes_a_combination_of_every_sweep(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    values_of_all, commands = zip(*(last(path) for path in SWEEPS if path.stem in names), strict=True)
    for values, namespace in zip(values_of_all, parsed([*commands]), strict=True):
        given = {name: value for name, value in values.items() if name != "config"}  # an overlay, read while parsing
        assert {name: setting(namespace.fit, name) for name in given} == given


def arms() -> Iterator[list[list[str]]]:
    """The commands of every method of an arena, and of every arm of an experiment."""
    for path in ARENAS:
        arena = read_arena(path)
        assert arena.name == path.stem
        yield from ([command[1:] for command in arena.commands(label, 0)] for label in arena.methods)
    for path in EXPERIMENTS:
        for steps in read_experiment(path).arms.values():
            first, *others = map(shlex.split, steps)  # as scripts/findings does
            yield [first, *([words[0], *first[1:], *words[1:]] for words in others)]


@pytest.mark.slow
def test_the_command_line_takes_every_setting_of_arenas_and_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are parsed that have a word which none before had, apart from numbers; those after a training first."""
    monkeypatch.chdir(ROOT)
    order = ("finetune", "search", "fit", "test")
    by_command: dict[str, list[list[str]]] = {name: [] for name in order}
    seen: set[str] = set()
    for words in sorted((words for commands in arms() for words in commands), key=lambda words: order.index(words[0])):
        kinds = {re.sub(r"=-?\d[\d.e+-]*$", "=number", word) for word in words}
        if kinds - seen:
            by_command[words[0]].append(words)
            seen |= kinds
    for commands in by_command.values():
        assert len(parsed(commands)) == len(commands)
