"""A run as one HTML page that needs no network, and what other pages of the same look are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.analysis.report import finetune_sections, model_sections, run_sections, search_sections
from lit_fednas.analysis.report.blocks import Block, Charts, Fold, Table, frame_table, picture
from lit_fednas.analysis.report.charts import line_chart
from lit_fednas.analysis.report.page import write_page
from lit_fednas.analysis.runs import Run, SearchResult, read_run, read_search
from lit_fednas.records import (
    CLIENTS_FILE,
    LEDGER_FILE,
    ROUNDS_FILE,
    SEQUENCE_FILE,
    SUITE_FILE,
    FinetuneFiles,
    SearchFiles,
)
from lit_fednas.records.files import reading

__all__ = ["Charts", "Fold", "Table", "frame_table", "line_chart", "picture", "write_page", "write_report"]

_SEARCH = "Search"
#: By heading: the file that a section is made of above all, and what returns its blocks, none where the run lacks it.
#: Searches and fine-tunings follow them.
SECTIONS = {
    "Training": (ROUNDS_FILE, run_sections.training),
    "Models": (SUITE_FILE, model_sections.suite),
    "Pruned models": (SEQUENCE_FILE, model_sections.sequence),
    "Subnets": ("subnets-val.csv", run_sections.subnets),
    "Costs": (LEDGER_FILE, run_sections.costs),
    "Clients' data": ("partition.csv", run_sections.partition),
}
LAST = {
    "Fairness": (CLIENTS_FILE, run_sections.fairness),
    "Settings": ("config.yaml", run_sections.settings),
}
#: Sections that only few runs have.
_RARE = ("Models", "Pruned models", "Fairness")


def write_report(run_folder: Path | str, output: Path | str | None = None) -> Path:
    """Writes a run as one HTML page that needs no network.

    Args:
        run_folder: The run's folder.
        output: The page; ``report.html`` in the run's folder if not given.

    Returns:
        The page's path.

    Raises:
        DataError: The folder is not a run's, or a file of it is damaged.
        ConfigError: The page cannot be written.
    """
    run = read_run(run_folder)
    searches = [read_search(files.folder) for files in SearchFiles.within(run.folder)]
    with reading(run.folder / "config.yaml"):
        summary = run_sections.summary(run.settings)
    with reading(run.folder / LEDGER_FILE):
        tiles = run_sections.tiles(run, searches[:1])
    sections = {title: blocks for title, blocks in _sections(run, searches) if blocks}
    search = {_SEARCH: ("search/settings.json", None)}
    files = {title: file for title, (file, _) in (SECTIONS | search | LAST).items()}
    missing = [title for title in files if title not in (*sections, *_RARE)]
    return write_page(
        run.name,
        sections,
        output if output is not None else run.folder / "report.html",
        summary=summary,
        tiles=tiles,
        notes=[f"Left out: {title}, because the run has no {files[title]}." for title in missing],
    )


def _sections(run: Run, searches: Sequence[SearchResult]) -> Iterator[tuple[str, list[Block]]]:
    """Yields all sections in their order; those that the run lacks have no blocks."""
    tiers = list(dict.fromkeys(tier for search in searches for tier in search.tier_names))
    for title, (file, make) in SECTIONS.items():
        yield title, _made(run.folder / file, make, run)
    for search in searches:
        folder = run.folder / search.name
        yield _titled(_SEARCH, folder, "search"), _parts(folder, search_sections.PARTS, search, tiers)
    for files in FinetuneFiles.within(run.folder):
        made = _parts(files.folder, finetune_sections.PARTS, files, tiers)
        yield _titled("Fine-tuning", files.folder, "finetune"), made
    for title, (file, make) in LAST.items():
        yield title, _made(run.folder / file, make, run)


def _made(file: Path, make: Callable[..., list[Block]], *given: Any) -> list[Block]:
    with reading(file):
        return make(*given)


def _parts(folder: Path, parts: Sequence[tuple[str, Callable[..., list[Block]]]], *given: Any) -> list[Block]:
    """Returns the blocks of a search's or a fine-tuning's tables."""
    return [block for table, make in parts for block in _made(folder / f"{table}.csv", make, *given)]


def _titled(title: str, folder: Path, usual: str) -> str:
    return title if folder.name == usual else f"{title}: {folder.name}"
