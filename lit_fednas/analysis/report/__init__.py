"""A run as one HTML page that needs no network.

The page is a jinja2 template with plotly's script inside, so that its charts can be read by hovering: 4.8 MB for
the script (1.5 MB when a server or an archive compresses it) and 30 to 200 kB for the run.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from lit_fednas.analysis.report import model_sections, run_sections, search_sections
from lit_fednas.analysis.runs import Run, read_run
from lit_fednas.records import CLIENTS_FILE, LEDGER_FILE, ROUNDS_FILE, SEQUENCE_FILE, SUITE_FILE
from lit_fednas.records.files import check_output, reading, replace_text

__all__ = ["page", "write_report"]

#: Each returns the blocks of ``charts`` that it shows, or none where the run lacks its files.
SECTIONS = {
    "Training": run_sections.training,
    "Models": model_sections.suite,
    "Pruned models": model_sections.sequence,
    "Subnets": run_sections.subnets,
    "Costs": run_sections.costs,
    "Clients' data": run_sections.partition,
    "Pareto fronts": search_sections.fronts,
    "Search": search_sections.progress,
    "Architectures found": search_sections.architectures,
    "Fairness": run_sections.fairness,
    "Settings": run_sections.settings,
}
#: The file that each is made of above all, and the sections that only few runs have.
_FILES = {
    "Training": ROUNDS_FILE,
    "Models": SUITE_FILE,
    "Pruned models": SEQUENCE_FILE,
    "Subnets": "subnets-val.csv",
    "Costs": LEDGER_FILE,
    "Clients' data": "partition.csv",
    "Pareto fronts": "search/evaluations.csv",
    "Search": "search/history.csv",
    "Architectures found": "search/tiers.csv",
    "Fairness": CLIENTS_FILE,
    "Settings": "config.yaml",
}
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
    path = Path(output) if output is not None else run.folder / "report.html"
    check_output(path)
    replace_text(path, page(run))
    return path


def page(run: Run) -> str:
    """Returns the whole document; a section without its files is one line, or nothing."""
    loader = PackageLoader("lit_fednas.analysis.report")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["kind"] = lambda one: type(one).__name__  # which macro shows it
    with reading(run.folder / _FILES["Settings"]):
        summary = run_sections.summary(run.settings)
    with reading(run.folder / _FILES["Costs"]):
        tiles = run_sections.tiles(run)
    sections = {}
    for title, make in SECTIONS.items():
        with reading(run.folder / _FILES[title]):
            if blocks := make(run):
                sections[title] = blocks
    return templates.get_template("page.html.j2").render(
        name=run.name,
        summary=summary,
        tiles=tiles,
        sections=sections,
        missing={title: file for title, file in _FILES.items() if title not in (*sections, *_RARE)},
        plotly=Markup(get_plotlyjs()),
    )
