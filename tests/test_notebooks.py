"""Every notebook runs from its first cell to its last.

Those that show a run are run on a small one, and kept without outputs. Those of results read ``notebooks/results``
alone, and are kept with what they show.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.analysis.conftest import finished_run

__all__ = ["finished_run"]
FOLDER = Path(__file__).parents[1] / "notebooks"
RESULTS = sorted(FOLDER.glob("results_*.ipynb"))
NOTEBOOKS = sorted({*FOLDER.glob("*.ipynb")} - {*RESULTS})


def test_all_notebooks_are_found() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["findings", "pareto_fronts", "supernet_tour"]
    assert len(RESULTS) == 10


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
    assert named == {path.name for path in (FOLDER / "results").iterdir()}


@pytest.mark.slow
def test_results_are_those_of_their_tables() -> None:
    """One kernel runs all notebooks from the repository's root, and forgets the names of one before the next."""
    new_cell = nbformat.v4.new_code_cell
    kept = [cell for path in RESULTS for cell in [new_cell("%reset -f"), *code_cells(path)]]
    run = nbformat.v4.new_notebook(cells=[new_cell(cell.source) for cell in kept])
    NotebookClient(run, timeout=120, resources={"metadata": {"path": str(FOLDER.parent)}}).execute()
    for before, cell in zip(kept, run.cells, strict=True):
        assert table_cells(cell) == table_cells(before), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_FEDNAS_RUN", str(finished_run))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert len(outputs) >= sum(cell.cell_type == "code" for cell in notebook.cells) - 2  # all but definitions
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= {"findings": 2, "pareto_fronts": 4, "supernet_tour": 1}[path.stem]
    text = [output.data.get("text/plain", "") for output in outputs if output not in pictures and "data" in output]
    assert not [one for one in text if one.startswith("<Figure")]  # a figure that is named and not shown
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
