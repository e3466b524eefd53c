"""Every notebook runs from its first cell to its last on a small run, and is kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.analysis.conftest import finished_run

__all__ = ["finished_run"]
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_all_notebooks_are_found() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["findings", "pareto_fronts", "supernet_tour"]


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
