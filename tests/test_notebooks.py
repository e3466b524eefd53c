"""Every notebook runs from its first cell to its last.

Notebooks of a run are executed on a small one, and stored without outputs. Notebooks of results read only
``notebooks/reproduction/results``; they and the tutorials, which train, are stored with outputs.
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


def outputs_of(cells: list[nbformat.NotebookNode], kind: str) -> list[list[str]]:
    """Returns the outputs of each cell in one form, such as its tables in HTML."""
    return [[output.data[kind] for output in cell.outputs if kind in output.get("data", {})] for cell in cells]


def table_cells(cell: nbformat.NotebookNode) -> list[str]:
    """Returns the texts in the tables of a cell's output."""
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", "".join(*outputs_of([cell], "text/html")))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_are_stored_with_outputs(path: Path) -> None:
    assert path.stat().st_size < 300_000
    imports, *cells = code_cells(path)
    assert not imports.outputs
    tables, pictures = outputs_of(cells, "text/html"), outputs_of(cells, "image/png")
    for cell, table, picture in zip(cells, tables, pictures, strict=True):
        assert bool(picture) == ("new_figure" in cell.source)
        assert table or picture
        assert {output.output_type for output in cell.outputs} <= {"execute_result", "display_data"}


def test_every_table_of_results_is_shown() -> None:
    sources = "".join(cell.source for path in RESULTS for cell in code_cells(path))
    names = set(re.findall(r'"(\w+\.csv)"', sources))
    assert names == {path.name for path in (REPRODUCTION / "results").iterdir()}


@pytest.mark.slow
def test_results_are_those_of_their_tables() -> None:
    """One kernel runs all notebooks in their folder, and is reset before each."""
    forget = "%reset -f\nimport pandas\npandas.reset_option('^display')"
    stored = [cell for path in RESULTS for cell in [new_code_cell(forget), *code_cells(path)]]
    run = new_notebook(cells=[new_code_cell(cell.source) for cell in stored])
    NotebookClient(run, timeout=120, resources={"metadata": {"path": str(REPRODUCTION)}}).execute()
    for stored_cell, cell in zip(stored, run.cells, strict=True):
        assert table_cells(cell) == table_cells(stored_cell), cell.source


def shorter(source: str) -> str:
    """Returns a cell with a third of the rounds, and a search of half the size."""

    def share(match: re.Match[str]) -> str:
        return f"{match[1]}{max(1, int(match[3]) // (3 if match[2] else 2))}"

    names = "(max_rounds|check_val_every_n_rounds)|evaluations|population|sample"
    return re.sub(rf"((?:{names})[: =]+)(\d+)", share, source)


def executed(path: Path, folder: Path) -> list[nbformat.NotebookNode]:
    """Runs a notebook's shortened code cells in a folder; returns them with their outputs."""
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
    """They show a run with two searches and a fine-tuning, like the quickstart's."""
    folder = shutil.copytree(finished_run, tmp_path / "digits" / "version_0")
    tuned(Run(folder), "thirds", "random", {"a": (0.6, 0.5, 30)})
    monkeypatch.setenv("LIT_FEDNAS_RUN", str(folder))
    cells = executed(path, path.parent)
    outputs = [output for cell in cells for output in cell.outputs]
    assert len(outputs) >= len(cells) - 2  # all cells except definitions
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= {"findings": 2, "pareto_fronts": 4, "supernet_tour": 1}[path.stem]
    text = [output.data.get("text/plain", "") for output in outputs if output not in pictures and "data" in output]
    assert not [line for line in text if line.startswith("<Figure")]  # a figure that is named and not shown
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_kept_as_they_were_executed(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert max(len(cell.source.splitlines()) for cell in cells) <= 40
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    for path_part in ("/tmp/", "/home/", "/root/", "site-packages"):
        assert path_part not in str(outputs), f"{path_part} is of the machine that executed it"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_imports_of_tutorials_exist(path: Path) -> None:
    sources = [cell.source for cell in code_cells(path) if not cell.source.startswith("%%")]
    lines = [line for source in sources for line in source.splitlines() if not line.startswith(("%", "!"))]
    imports = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)]
    names = [(str(node.module), name.name) for node in imports for name in node.names]
    names = [(module, name) for module, name in names if "lit_fednas" in module]
    assert names
    assert not [(module, name) for module, name in names if not hasattr(import_module(module), name)]


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path: Path, tmp_path: Path) -> None:
    """They run from another folder than the repository's, like a reader's."""
    cells = executed(path, tmp_path)
    for stored, cell in zip(code_cells(path), cells, strict=True):
        assert [o.output_type for o in cell.outputs] == [o.output_type for o in stored.outputs], cell.source
        if 'main(["partition"' in cell.source:
            assert [o.get("text") for o in cell.outputs] == [o.get("text") for o in stored.outputs]
