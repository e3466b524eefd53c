"""Every notebook runs from its first cell to its last.

Those that show a run are run on a small one, and kept without outputs. Those of results read
``notebooks/reproduction/results`` alone, and are kept with what they show; tutorials train what they show, and are kept
as they were executed.
"""

from __future__ import annotations

import ast
import re
import shutil
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from lit_fednas.analysis import Run
from tests.analysis.conftest import finished_run
from tests.analysis.test_comparison import tuned

__all__ = ["finished_run"]
FOLDER = Path(__file__).parents[1] / "notebooks"
REPRODUCTION = FOLDER / "reproduction"
RESULTS = sorted(REPRODUCTION.glob("results_*.ipynb"))
TUTORIALS = sorted(FOLDER.glob("tutorial_*.ipynb"))
NOTEBOOKS = [*sorted({*FOLDER.glob("*.ipynb")} - {*TUTORIALS}), REPRODUCTION / "findings.ipynb"]


def test_all_notebooks_are_found() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["pareto_fronts", "supernet_tour", "findings"]
    assert len(RESULTS) == 15


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def shown(cells: list[nbformat.NotebookNode], kind: str) -> list[list[str]]:
    """Returns what each cell shows in one form, such as its tables in HTML."""
    return [[one.data[kind] for one in cell.outputs if kind in one.get("data", {})] for cell in cells]


def table_cells(cell: nbformat.NotebookNode) -> list[str]:
    """Returns what is written in the tables that a cell shows."""
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", "".join(*shown([cell], "text/html")))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_are_kept_with_what_they_show(path: Path) -> None:
    assert path.stat().st_size < 300_000
    imports, *cells = code_cells(path)
    assert not imports.outputs
    tables, pictures = shown(cells, "text/html"), shown(cells, "image/png")
    for cell, table, picture in zip(cells, tables, pictures, strict=True):
        assert bool(picture) == ("new_figure" in cell.source)
        assert table or picture
        assert {output.output_type for output in cell.outputs} <= {"execute_result", "display_data"}


def test_every_table_of_results_is_shown() -> None:
    sources = "".join(cell.source for path in RESULTS for cell in code_cells(path))
    named = set(re.findall(r'"(\w+\.csv)"', sources))
    assert named == {path.name for path in (REPRODUCTION / "results").iterdir()}


@pytest.mark.slow
def test_results_are_those_of_their_tables() -> None:
    """One kernel runs all notebooks in their folder, and forgets the names and options of one before the next."""
    forget = "%reset -f\nimport pandas\npandas.reset_option('^display')"
    kept = [cell for path in RESULTS for cell in [new_code_cell(forget), *code_cells(path)]]
    run = new_notebook(cells=[new_code_cell(cell.source) for cell in kept])
    NotebookClient(run, timeout=120, resources={"metadata": {"path": str(REPRODUCTION)}}).execute()
    for before, cell in zip(kept, run.cells, strict=True):
        assert table_cells(cell) == table_cells(before), cell.source


def shorter(source: str) -> str:
    """A cell with a third of the rounds, and a search of half the size."""

    def share(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, int(found[3]) // (3 if found[2] else 2))}"

    names = "(max_rounds|check_val_every_n_rounds)|evaluations|population|sample"
    return re.sub(rf"((?:{names})[: =]+)(\d+)", share, source)


def executed(path: Path, folder: Path) -> list[nbformat.NotebookNode]:
    """The code cells of a notebook with what they show in a folder, made shorter."""
    run = new_notebook(cells=[new_code_cell(shorter(cell.source)) for cell in code_cells(path)])
    NotebookClient(run, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}).execute()
    return run.cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a run with two searches and a fine-tuning, as the quickstart's."""
    folder = shutil.copytree(finished_run, tmp_path / "digits" / "version_0")
    tuned(Run(folder), "thirds", "random", {"a": (0.6, 0.5, 30)})
    monkeypatch.setenv("LIT_FEDNAS_RUN", str(folder))
    cells = executed(path, path.parent)
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= len(cells) - 2  # all but definitions
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= {"findings": 2, "pareto_fronts": 4, "supernet_tour": 1}[path.stem]
    text = [output.data.get("text/plain", "") for output in outputs if output not in pictures and "data" in output]
    assert not [one for one in text if one.startswith("<Figure")]  # a figure that is named and not shown
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_kept_as_they_were_executed(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert max(len(cell.source.splitlines()) for cell in cells) <= 40
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    for place in ("/tmp/", "/home/", "/root/", "site-packages"):
        assert place not in str(outputs), f"{place} is of the machine that executed it"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_what_tutorials_import_exists(path: Path) -> None:
    sources = [cell.source for cell in code_cells(path) if not cell.source.startswith("%%")]
    lines = [line for source in sources for line in source.splitlines() if not line.startswith(("%", "!"))]
    imports = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)]
    own = [(str(node.module), one.name) for node in imports for one in node.names if "lit_fednas" in str(node.module)]
    assert own
    assert not [(module, name) for module, name in own if not hasattr(import_module(module), name)]


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path: Path, tmp_path: Path) -> None:
    """As a reader does, from another folder than the repository's."""
    cells = executed(path, tmp_path)
    for before, cell in zip(code_cells(path), cells, strict=True):
        assert [one.output_type for one in cell.outputs] == [one.output_type for one in before.outputs], cell.source
        if 'main(["partition"' in cell.source:
            assert [one.get("text") for one in cell.outputs] == [one.get("text") for one in before.outputs]
