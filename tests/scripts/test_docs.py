"""The pages of scripts/docs; references and examples in docstrings and guides."""

import ast
import builtins
import inspect
import json
import pkgutil
import pydoc
import re
import shlex
import warnings
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import yaml

import lit_fednas
from lit_fednas.cli import main
from tests.data.files import write_image

ROOT = Path(lit_fednas.__file__).parent
GUIDES = ROOT.parent / "scripts/documenting/guides"
REFERENCE = re.compile(r":(?:class|func|meth|attr|data|mod):`([\w.]+)`")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return import_module("documenting.pages")


def docstrings(module: ModuleType) -> Iterator[tuple[type | None, str]]:
    """Yields the docstrings of a module and its members, with their class."""
    yield None, inspect.getdoc(module) or ""
    for value in vars(module).values():
        owner = value if isinstance(value, type) else None
        for member in (value, *(vars(owner).values() if owner else ())):
            if getattr(member, "__module__", None) == module.__name__:
                yield owner, getattr(member, "__doc__", None) or ""


def exists(name: str, owner: type | None, module: ModuleType) -> bool:
    """Tells if a name exists in its class, its module, its package, or as a full name."""
    package = import_module(".".join(module.__name__.split(".")[:2]))
    for scope in (owner, module, package, builtins):
        value: Any = scope
        for word in name.split("."):
            annotated = any(word in vars(base).get("__annotations__", {}) for base in getattr(value, "__mro__", ()))
            value = getattr(value, word, ... if annotated else None)
        if value is not None:
            return True
    set_by_itself = owner is not None and f"self.{name}" in inspect.getsource(owner)
    return set_by_itself or pydoc.locate(name) is not None


def test_references_in_docstrings_exist() -> None:
    names = [module.name for module in pkgutil.walk_packages(lit_fednas.__path__, "lit_fednas.")]
    broken = [
        f"{module.__name__}: {name}"
        for module in (lit_fednas, *(import_module(name) for name in names if "__main__" not in name))
        for owner, text in docstrings(module)
        for name in REFERENCE.findall(text)
        if not exists(name, owner, module)
    ]
    assert not broken


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of all modules' docstrings and of the guides."""
    texts = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in ROOT.rglob("*.py")]
    texts += [path.read_text() for path in GUIDES.rglob("*.md")]
    return [block for text in texts for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


def check_parts(value: Any) -> int:
    """Checks that the parts in a piece of YAML exist and have its settings; returns their number."""
    if isinstance(value, list):
        return sum(map(check_parts, value))
    if not isinstance(value, dict):
        return 0
    if "class_path" in value:
        part = pydoc.locate(value["class_path"])
        assert part is not None, value["class_path"]
        parameters = inspect.signature(part).parameters  # type: ignore[arg-type]
        assert "kwargs" in parameters or set(value.get("init_args", {})) <= set(parameters), value
    return ("class_path" in value) + sum(map(check_parts, value.values()))


def test_names_and_files_in_examples_exist() -> None:
    """Classes and their settings in YAML, files in commands, imports in Python."""
    assert sum(check_parts(yaml.safe_load(block)) for block in blocks("yaml")) >= 15
    texts = [text for language in ("bash", "yaml") for text in blocks(language)]
    files = {file for text in texts for file in re.findall(r"\b(?:configs|scripts)/[\w./]+", text)}
    assert len(files) > 8
    assert not [file for file in files if not (ROOT.parent / file).exists()]
    nodes = [node for block in blocks("python") for node in ast.walk(ast.parse(block))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]
    assert len(names) > 5
    assert not [name for name in names if pydoc.locate(name) is None]


@pytest.mark.slow
def test_commands_of_guides_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provides the part of a guide as a package, and existing files for the reader's."""
    (tmp_path / "my_package.py").write_text(next(block for block in blocks("python") if "class HiddenUnits" in block))
    monkeypatch.syspath_prepend(str(tmp_path))
    files = dict.fromkeys(["X.yaml", "mine/config.yaml"], "superfed/digits.yaml") | {"TIERS.yaml": "search/digits.yaml"}
    files["resnet.yaml"] = "width/digits.yaml"
    lines = sorted({*"".join(blocks("bash")).replace("\\\n", " ").splitlines()})
    for line in (line for line in lines if re.match("lit-fednas (fit|search|finetune|export|test) ", line)):
        with pytest.raises(SystemExit) as end:
            main([*(files.get(word, word) for word in shlex.split(line, comments=True)[1:]), "--print_config"])
        assert not end.value.code, line


#: The command for each guide's YAML, with options that make it cheap.
SHOWN = {
    "data": "fit --config superfed/digits.yaml --config FILE --trainer.max_rounds 1 "
    "--data.source.init_args.root images",
    "fednas": "fit --config fednas/digits.yaml --config FILE --model.client.epochs 1 --trainer.max_rounds 1",
    "fedoras": "fit --config fedoras/digits.yaml --config FILE --trainer.max_rounds 1",
    "fedtrans": "fit --config fedtrans/digits.yaml --config FILE --trainer.max_rounds 1",
    "flower": "fit --config superfed/digits.yaml --config FILE --trainer.max_rounds 1",
    "privacy": "fit --config superfed/drawn_by_cost.yaml --config FILE --trainer.max_rounds 1",
    "search": "search --config superfed/digits.yaml --config FILE --search.evaluations 2 --search.method.init_args {}",
    "studies": "study FILE --seeds 0",
    "supernets": "fit --config width/cifar10_small.yaml --config FILE --data.source.init_args.root images "
    "--data.num_clients 10 --model.supernet.init_args.scaler false --model.client.steps 1 --trainer.max_rounds 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("guide", SHOWN)
def test_yaml_of_guides_runs(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split, count in {"train": 300, "val": 20, "test": 20}.items():
        targets = np.arange(count) % 10
        np.savez(f"{split}.npz", inputs=np.zeros((count, 1, 8, 8), np.float32), targets=targets)
        for n, target in enumerate(targets):
            write_image(Path(f"images/{split}/{target}/{n}.png"), 12 * target)
    Path("common.yaml").write_text("trainer: {check_val_every_n_rounds: 1}")
    examples = {
        path.stem: re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL) for path in GUIDES.rglob("*.md")
    }
    assert {name: len(blocks) for name, blocks in examples.items() if blocks} == dict.fromkeys(SHOWN, 1)
    Path("FILE").write_text(
        re.sub(r"(?<=rounds: |ations: )\d+", lambda number: str(int(number[0]) // 20), examples[guide][0])
    )
    if guide == "search":
        assert main(["fit", "--config", "superfed/digits.yaml", "--trainer.max_rounds", "1"]) == 0
    assert main(SHOWN[guide].split()) == 0


def test_every_public_module_has_a_page_and_a_docstring(pages: ModuleType) -> None:
    files = {f"lit_fednas.{path.stem}" for path in ROOT.glob("[!_]*.py")}
    packages = {f"lit_fednas.{path.parent.name}" for path in ROOT.glob("*/__init__.py")}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as missing names of __all__
        modules = {module.fullname: module for module in pages.public_modules()}
        assert all(module.members or module.submodules for module in modules.values() if module.fullname in packages)
    assert modules.keys() >= {"lit_fednas"} | files | packages
    assert not [name for name, module in modules.items() if not module.docstring]
    introduced = {name for name in packages if len(modules[name].docstring.splitlines()) > 1}
    assert introduced == packages


def test_a_folder_with_other_pages_is_left_as_it_is(
    pages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(SystemExit):
        pages.main([str(tmp_path)])
    assert f"{tmp_path / 'index.html'} exists and is not from this command; move it" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "mine"


def test_links_of_guides_are_files_of_the_repository_and_pages_of_the_documentation(pages: ModuleType) -> None:
    count = 0
    for path in GUIDES.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)]*)\)", path.read_text()):
            file, _, anchor = link.partition("#")
            target = path.parent / file if file else path
            assert target.is_file(), f"{path.name} links to {link}"
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert not (file and anchor) or anchor in {heading.lower().replace(" ", "-") for heading in headings}
            count += 1
    assert count >= 50
    _, cells = pages.content_page(GUIDES / "install.md", "guides/install.html")
    assert '"../guides/machines.html#Many-runs"' in cells
    _, cells = pages.content_page(GUIDES / "systems/recommended.md", "systems/recommended.html")
    assert '"../reproduction/results_arena.html"' in cells
    assert not re.findall(r'href="(?!https?:)[^"]*\.(?:md|ipynb)', cells)


@pytest.mark.slow
def test_the_pages_are_complete_and_need_no_network(pages: ModuleType, tmp_path: Path) -> None:
    pages.main([str(tmp_path)])
    pages_by_path = {path.resolve(): path.read_text() for path in tmp_path.rglob("*.html")}
    anchors = {path: {"", *re.findall(r'id="([^"]+)"', unescape(text))} for path, text in pages_by_path.items()}
    index = pages_by_path[tmp_path.resolve() / "index.html"]
    notebooks = [*pages.NOTEBOOKS.glob("tutorial_*"), *pages.NOTEBOOKS.glob("reproduction/results_*.ipynb")]
    sources = [*notebooks, *pages.GUIDES.rglob("*.md")]
    for link in (*(f"{path.parent.name}/{path.stem}.html" for path in sources), "api/lit_fednas/data.html"):
        assert f'href="{link}"' in index
    (entries,) = re.findall(r"entries = (.*);\n", (tmp_path / "search.js").read_text())
    links = [(tmp_path.resolve() / "index.html", link) for _, link, _ in json.loads(entries)]
    for path, text in pages_by_path.items():
        assert not re.findall(r'(?:src="|<link [^>]*href="|url\()https?:[^")]*', text)
        links += [
            (path, link) for link in re.findall(r'(?:href|src)="([^"]*)"', re.sub(r"(?s)<script.*?</script>", "", text))
        ]
    for path, link in links:
        file, _, anchor = unquote(link).partition("#")
        if not re.match(r"https?:|data:", file):
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name} links to {link}"
            assert "api" in path.parts or anchor in anchors[target], f"{path.name} links to {link}"
    assert ">not seen<" in pages_by_path[tmp_path.resolve() / "systems/fedtrans.html"]
