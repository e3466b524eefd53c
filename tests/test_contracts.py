"""The contracts fit all methods equally, read from the source of the whole package."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import lit_fednas
from lit_fednas.aggregation import Aggregation
from lit_fednas.assignment import Assignment
from lit_fednas.federation import FederatedCallback
from lit_fednas.objectives import Objective
from lit_fednas.parts import Part
from lit_fednas.supernets import SearchSpace, Supernet

ROOT = Path(lit_fednas.__file__).parent
BASES = [Aggregation, Assignment, FederatedCallback, Objective, SearchSpace, Supernet]


def classes() -> dict[str, type]:
    names = [module.name for module in pkgutil.walk_packages([str(ROOT)], "lit_fednas.")]
    return {
        name: kind
        for module in (import_module(name) for name in names if folder(name) not in ("__main__", "testing"))
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    }


def folder(module: str) -> str:
    return module.split(".")[1]


def concrete_parts() -> dict[str, str]:
    """Returns the folder of every concrete part, architecture and network, by its class's name."""
    roles = {"supernets", "assignment", "objectives", "aggregation", "callbacks", "search", "tiers"}
    return {
        name: folder(kind.__module__)
        for name, kind in classes().items()
        if folder(kind.__module__) in roles
        and not inspect.isabstract(kind)
        and not any(base.__name__ == "ABC" for base in kind.__bases__)
        and issubclass(kind, Part | Supernet | SearchSpace | nn.Module)
    }


def test_concrete_types_are_checked_only_in_their_folder() -> None:
    folders = concrete_parts()
    assert len(folders) > 50
    checks = []
    for path in sorted(ROOT.rglob("*.py")):
        own_folder = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                for name in re.findall(r"\w+", ast.unparse(node.args[1])):
                    if name in folders and folders[name] != own_folder:
                        checks.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert checks == []


def test_the_engine_names_no_method_and_no_concrete_part() -> None:
    """Its defaults, plain averaging of a plain loss, belong to no method."""
    allowed = {"TaskLoss"}
    methods = r"SuperFed|FedorAS|FedHeN|FedNAS|FedTrans|HeteroFL|FjORD|FedRolex|SplitMix|FLuID"
    uses = []
    parts = {name for name, where in concrete_parts().items() if where != "callbacks"} - allowed
    for path in sorted((ROOT / "federation").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        }
        for node in ast.walk(tree):
            words = [node.id] if isinstance(node, ast.Name) else []
            words += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                words += re.findall(methods, node.value)
            uses += [f"{path.name}: {word}" for word in words if word in parts or re.fullmatch(methods, word)]
    assert uses == []


#: Members for exceptions: one space has equal networks for different genes, one supernet builds no network.
ONE_KNOWS_BETTER = {"SearchSpace.size", "Supernet.layers"}


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_no_member_of_a_base_has_a_single_overrider(base: type) -> None:
    kinds = [kind for kind in {id(kind): kind for kind in classes().values()}.values() if issubclass(kind, base)]
    single = []
    for name, member in vars(base).items():
        is_private = name.startswith("_") or not (callable(member) or isinstance(member, property))
        if f"{base.__name__}.{name}" in ONE_KNOWS_BETTER:
            continue
        if is_private or getattr(member, "__isabstractmethod__", False):
            continue
        overriders = [kind.__name__ for kind in kinds if kind is not base and name in vars(kind)]
        if len(overriders) == 1:
            single.append(f"{base.__name__}.{name} by {overriders[0]} alone")
    assert single == []
