"""A run as one HTML page that needs no network and no script, and the parts of other pages with the same look."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lit_fednas.analysis.charts import Chart, Charts, line_chart
from lit_fednas.analysis.networks import Result
from lit_fednas.analysis.page import Block, write_page
from lit_fednas.analysis.report import model_sections, run_sections, search_sections
from lit_fednas.analysis.runs import Run, SearchResult, read_run
from lit_fednas.analysis.tables import Fold, Table
from lit_fednas.records import TierFiles
from lit_fednas.records.files import check_output, reading
from lit_fednas.records.run import CLIENTS_FILE, LEDGER_FILE, ROUNDS_FILE, SEQUENCE_FILE, SUITE_FILE

__all__ = ["Chart", "Charts", "Fold", "Table", "line_chart", "report", "write_page", "write_report"]

_SEARCH = "Search"
#: The main file of each section, and the function that returns its blocks (none if the run lacks them). The sections of
#: searches and fine-tunings follow, then those of ``LAST``.
SECTIONS = {
    "Training": (ROUNDS_FILE, run_sections.training),
    "Models": (SUITE_FILE, model_sections.suite),
    "Pruned models": (SEQUENCE_FILE, model_sections.sequence),
    "Subnets": ("subnets-val.csv", run_sections.subnets),
    "Costs": (LEDGER_FILE, run_sections.costs),
    "Clients' data": ("partition.csv", run_sections.partition),
}
LAST = {"Fairness": (CLIENTS_FILE, run_sections.fairness), "Settings": ("config.yaml", run_sections.settings)}
#: Sections that only few runs have.
_RARE = ("Models", "Pruned models", "Fairness")


def report(run: Path, output: Path | None = None, overwrite: bool = False) -> None:
    """Writes a finished run's folder as one HTML page that needs no network.

    Args:
        run: A run's folder, such as runs/digits/version_0.
        output: The file to write; by default report.html in the run's folder.
        overwrite: Whether to replace an output that this command has not written.
    """
    if output is not None:
        check_output(output, overwrite=overwrite)
    print(f"written: {write_report(run, output)}")


def write_report(run_folder: Path | str, output: Path | str | None = None) -> Path:
    """Writes a run as one HTML page, by default report.html in its folder; returns the page's path."""
    run = read_run(run_folder)
    searches = Result(run).searches
    latest = [search for search in searches if run.rounds_of(search.weights) == run.rounds_of(searches[0].weights)]
    with reading(run.folder / "config.yaml"):
        summary = run_sections.summary(run.settings)
    with reading(run.folder / LEDGER_FILE):
        tiles = run_sections.tiles(run, latest)
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
    """Yields all sections in their order; sections that the run lacks have no blocks."""
    yield "One supernet and networks trained alone", _blocks(run.folder / ROUNDS_FILE, search_sections.comparison, run)
    tiers = list(dict.fromkeys(tier for search in searches for tier in search.tier_names))
    for title, (file, make) in SECTIONS.items():
        yield title, _blocks(run.folder / file, make, run)
    titles = {name: "Trained alone" if Result(run, name).trained_alone else "Fine-tuning" for name in run.finetunings}
    kinds: list[tuple[str, str, Mapping[str, Callable[..., list[Block]]], tuple[Any, ...]]] = [
        *((_SEARCH, search.name, search_sections.SEARCH, (search,)) for search in searches),
        *((title, name, search_sections.FINETUNING, (run, name)) for name, title in titles.items()),
    ]
    for title, name, parts, arguments in kinds:
        files = {run.folder / name / f"{table}.csv": make for table, make in parts.items()}
        blocks = [*chain.from_iterable(_blocks(file, make, *arguments, tiers) for file, make in files.items())]
        rounds = run.rounds_of(TierFiles(run.folder / name).settings().get("weights"))
        if blocks and rounds != len(run.rounds):
            weights = f"the weights after {rounds} rounds" if rounds else "weights that the run no longer has"
            blocks.insert(0, f"The results are of {weights}.")
        yield title if name in ("search", "finetune") else f"{title}: {name}", blocks
    for title, (file, make) in LAST.items():
        yield title, _blocks(run.folder / file, make, run)


def _blocks(file: Path, make: Callable[..., list[Block]], *arguments: Any) -> list[Block]:
    with reading(file):
        return make(*arguments)
