"""A run as one HTML page that needs no network and no script, and what other pages of the same look are made of."""

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


def report(run: Path, output: Path | None = None, overwrite: bool = False) -> None:
    """Writes a finished run's folder as one HTML page that needs no network.

    Args:
        run: A run's folder, as runs/digits/version_0.
        output: The file; report.html in the run's folder if not given.
        overwrite: Whether to replace an output that this command has not written.
    """
    if output is not None:
        check_output(output, overwrite=overwrite)
    print(f"written: {write_report(run, output)}")


def write_report(run_folder: Path | str, output: Path | str | None = None) -> Path:
    """Writes a run as one HTML page that needs no network, by default in its folder; returns the page's path."""
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
    """Yields all sections in their order; those that the run lacks have no blocks."""
    yield "One supernet and networks trained alone", _made(run.folder / ROUNDS_FILE, search_sections.comparison, run)
    tiers = list(dict.fromkeys(tier for search in searches for tier in search.tier_names))
    for title, (file, make) in SECTIONS.items():
        yield title, _made(run.folder / file, make, run)
    titles = {name: "Trained alone" if Result(run, name).trained_alone else "Fine-tuning" for name in run.finetunings}
    kinds: list[tuple[str, str, Mapping[str, Callable[..., list[Block]]], tuple[Any, ...]]] = [
        *((_SEARCH, search.name, search_sections.SEARCH, (search,)) for search in searches),
        *((title, name, search_sections.FINETUNING, (run, name)) for name, title in titles.items()),
    ]
    for title, name, parts, given in kinds:
        made = (_made(run.folder / name / f"{table}.csv", make, *given, tiers) for table, make in parts.items())
        blocks = [*chain.from_iterable(made)]
        rounds = run.rounds_of(TierFiles(run.folder / name).settings().get("weights"))
        if blocks and rounds != len(run.rounds):
            of_weights = f"the weights after {rounds} rounds" if rounds else "weights that the run no longer has"
            blocks.insert(0, f"The results are of {of_weights}.")
        yield title if name in ("search", "finetune") else f"{title}: {name}", blocks
    for title, (file, make) in LAST.items():
        yield title, _made(run.folder / file, make, run)


def _made(file: Path, make: Callable[..., list[Block]], *given: Any) -> list[Block]:
    with reading(file):
        return make(*given)
