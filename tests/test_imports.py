"""The one direction of imports: every import of every module, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lit_fednas

ROOT = Path(lit_fednas.__file__).parent
PACKAGE = "lit_fednas"

FLOOR = {"errors", "ranges", "rng", "formatting", "config_files"}
ROLES = {"assignment", "objectives", "aggregation"}
SHARED = FLOOR | {"records", "messages", "parts", "transport", "costs", "data", "supernets", "tiers"}
ENGINE = SHARED | ROLES | {"federation"}
#: What each part may import beside itself; a new part needs a line.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "ranges": {"errors"},
    "rng": set(),
    "formatting": set(),
    "config_files": {"errors", "formatting"},
    "records": FLOOR,
    "messages": FLOOR,
    "parts": {"errors", "messages"},
    "transport": FLOOR | {"messages"},
    "costs": FLOOR | {"messages", "records"},
    "data": FLOOR | {"records"},
    "supernets": FLOOR | {"costs", "parts", "records"},  # a run's grown model
    "tiers": FLOOR | {"messages", "records", "costs", "data", "supernets"},
    **{role: FLOOR | {"supernets", "costs", "messages", "parts", "tiers"} for role in ROLES},
    "assignment": FLOOR | {"supernets", "costs", "messages", "parts", "tiers", "records"},  # pools of files
    "objectives": FLOOR | {"supernets", "costs", "messages", "parts", "tiers", "data"},  # its own client's
    "federation": SHARED | ROLES,
    "callbacks": ENGINE | {"analysis"},  # a picture of a search
    "loggers": ENGINE,
    "analysis": (FLOOR - {"rng"}) | {"records"},
    "studies": FLOOR | {"records", "cli", "analysis", "federation"},  # the options of compare, commands that are set up
    "search": ENGINE,
    "finetune": ENGINE | {"callbacks", "loggers", "search"},
    "export": ENGINE | {"search"},
    "hub": FLOOR | {"records"},
    "cli": ENGINE | {"callbacks", "loggers", "analysis"},  # its table names the commands, and imports none
    "flower": ENGINE | {"cli", "finetune", "search"},
    "testing": ENGINE | {"search", "callbacks", "loggers", "cli"},  # on top of what it tests; nobody imports it
    "__main__": {"cli"},
    "": set(),  # lit_fednas/__init__.py
}


@dataclass(frozen=True)
class Import:
    """One module's import of another of the package."""

    source: str
    target: str
    line: int
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def part(module: str) -> str:
    """``lit_fednas.data.examples`` is in ``data``."""
    return module.removeprefix(PACKAGE).lstrip(".").split(".")[0]


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        names = path.relative_to(ROOT).with_suffix("").parts
        names = names[:-1] if names[-1] == "__init__" else names
        found[".".join((PACKAGE, *names))] = path
    return found


def imports() -> list[Import]:
    """All imports within the package, wherever in a module they stand."""
    known = modules()
    found = []
    for source, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(tree):
            for target in targets(node, source, known):
                found.append(Import(source, target, node.lineno, id(node) in typing_only))  # type: ignore[attr-defined]
    return found


def targets(node: ast.AST, source: str, known: dict[str, Path]) -> Iterator[str]:
    """The package's modules that a statement imports; the most precise name that is a module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = str(node.module)
        names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
    else:
        return
    for name in dict.fromkeys(names):
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            assert name in known, f"{source}:{node.lineno} imports {name}, which does not exist"
            yield name


@pytest.fixture(scope="module")
def ours() -> list[Import]:
    return imports()


def test_every_part_has_its_place(ours: list[Import]) -> None:
    assert {part(module) for module in modules()} <= set(ALLOWED)
    assert len(ours) > 100


def test_direction(ours: list[Import]) -> None:
    """The bare package may be imported by all."""
    wrong = [one for one in ours if part(one.target) not in ALLOWED[part(one.source)] | {part(one.source), ""}]
    assert [str(one) for one in wrong] == []


def test_contracts_and_their_pytest_are_imported_by_no_other_part(ours: list[Import]) -> None:
    assert {part(one.source) for one in ours if part(one.target) == "testing"} <= {"testing"}
    users = {
        part(name) for name, path in modules().items() if re.search(r"^\s*(import|from) pytest", path.read_text(), re.M)
    }
    assert users == {"testing"}


def test_no_circles_between_modules(ours: list[Import]) -> None:
    """Imports for type checkers make none."""
    graph: dict[str, set[str]] = {}
    for one in ours:
        if not one.typing_only:
            graph.setdefault(one.source, set()).add(one.target)
    TopologicalSorter(graph).prepare()  # an error names the circle


def test_no_circles_between_parts() -> None:
    """None of what is allowed, so none of what there is."""
    TopologicalSorter(ALLOWED).prepare()
