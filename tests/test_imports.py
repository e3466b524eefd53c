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
#: The parts that each part may import, beside itself; a new part needs a line.
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
    "objectives": FLOOR | {"supernets", "costs", "messages", "parts", "tiers", "data"},  # a client's own data
    "federation": SHARED | ROLES,
    "callbacks": ENGINE | {"analysis"},  # a picture of a search
    "loggers": ENGINE,
    "analysis": (FLOOR - {"rng"}) | {"records"},
    "studies": FLOOR | {"records", "cli", "analysis", "federation"},  # the options of compare, commands that are set up
    "search": ENGINE,
    "finetune": ENGINE | {"callbacks", "loggers", "search"},
    "export": ENGINE | {"search"},
    "hub": FLOOR | {"records"},
    "cli": ENGINE | {"callbacks", "loggers", "analysis"},  # the table of commands names them without imports
    "flower": ENGINE | {"cli", "finetune", "search"},
    "testing": ENGINE | {"search", "callbacks", "loggers", "cli"},  # above the tested parts; no part imports it
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
    """Returns the part of a module: ``data`` for ``lit_fednas.data.examples``."""
    return module.removeprefix(PACKAGE).lstrip(".").split(".")[0]


def modules() -> dict[str, Path]:
    paths = {}
    for path in sorted(ROOT.rglob("*.py")):
        names = path.relative_to(ROOT).with_suffix("").parts
        names = names[:-1] if names[-1] == "__init__" else names
        paths[".".join((PACKAGE, *names))] = path
    return paths


def imports() -> list[Import]:
    """Returns all imports within the package, at any place in a module."""
    paths = modules()
    statements = []
    for source, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(tree):
            for target in targets(node, source, paths):
                statements.append(Import(source, target, node.lineno, id(node) in typing_only))  # type: ignore[attr-defined]
    return statements


def targets(node: ast.AST, source: str, paths: dict[str, Path]) -> Iterator[str]:
    """Yields the package's modules that a statement imports, by the most precise name of a module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = str(node.module)
        names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in paths else base for alias in node.names]
    else:
        return
    for name in dict.fromkeys(names):
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            assert name in paths, f"{source}:{node.lineno} imports {name}, which does not exist"
            yield name


@pytest.fixture(scope="module")
def ours() -> list[Import]:
    return imports()


def test_every_part_has_its_place(ours: list[Import]) -> None:
    assert {part(module) for module in modules()} <= set(ALLOWED)
    assert len(ours) > 100


def test_direction(ours: list[Import]) -> None:
    """All parts may import the package itself."""
    faults = [item for item in ours if part(item.target) not in ALLOWED[part(item.source)] | {part(item.source), ""}]
    assert [str(item) for item in faults] == []


def test_contracts_and_their_pytest_are_imported_by_no_other_part(ours: list[Import]) -> None:
    assert {part(item.source) for item in ours if part(item.target) == "testing"} <= {"testing"}
    users = {
        part(name) for name, path in modules().items() if re.search(r"^\s*(import|from) pytest", path.read_text(), re.M)
    }
    assert users == {"testing"}


def test_no_circles_between_modules(ours: list[Import]) -> None:
    """Imports for type checkers do not count."""
    graph: dict[str, set[str]] = {}
    for item in ours:
        if not item.typing_only:
            graph.setdefault(item.source, set()).add(item.target)
    TopologicalSorter(graph).prepare()  # an error names the circle


def test_no_circles_between_parts() -> None:
    """Circles are not allowed, so no present import makes one."""
    TopologicalSorter(ALLOWED).prepare()
