"""The page: its sections in their order, the style and the script inside."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from lit_fednas.analysis.report import (
    client_sections,
    run_sections,
    search_sections,
    sequence_sections,
    suite_sections,
)
from lit_fednas.analysis.report.markup import Html, join, tag
from lit_fednas.analysis.runs import Run, read_run
from lit_fednas.records import ROUNDS_FILE
from lit_fednas.records.files import replace_text

SECTIONS = (
    ("Training", run_sections.curves),
    ("Models", suite_sections.models),
    ("Pruned models", sequence_sections.models),
    ("Subnets", run_sections.subnets),
    ("Costs", run_sections.costs),
    ("Clients' data", run_sections.partition),
    ("Pareto fronts", search_sections.fronts),
    ("Search", search_sections.progress),
    ("Architectures found", search_sections.architectures),
    ("Fairness", client_sections.fairness),
    ("Settings", run_sections.settings),
)

#: What is said to be missing; a section that is not here is one that few runs have.
_FILES = {
    "Training": ROUNDS_FILE,
    "Subnets": "subnets-val.csv",
    "Costs": "ledger.json",
    "Clients' data": "partition.csv",
    "Pareto fronts": "search/evaluations.csv",
    "Search": "search/history.csv",
    "Architectures found": "search/tiers.csv",
    "Settings": "config.yaml",
}


def write_report(run_folder: Path | str, output: Path | str | None = None) -> Path:
    """Writes a run as one HTML page that needs no network.

    Args:
        run_folder: The run's folder.
        output: The page; ``report.html`` in the run's folder if not given.

    Returns:
        The page's path.

    Raises:
        DataError: The folder is no run's.
    """
    run = read_run(run_folder)
    path = Path(output) if output is not None else run.folder / "report.html"
    replace_text(path, page(run))
    return path


def page(run: Run) -> Html:
    """The whole document; a section without its files is one line, or nothing."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", run.name),
        tag("style", _resource("report.css")),
    )
    made = {title: make(run) for title, make in SECTIONS}
    sections = [
        tag("section", tag("h2", title), content) for title, content in made.items() if content is not None
    ]
    absent = [_left_out(title) for title, content in made.items() if content is None and title in _FILES]
    main = tag("main", run_sections.headline(run), sections, tag("footer", absent))
    body = tag("body", main, tag("script", _resource("report.js")))
    return join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n"))


def _left_out(title: str) -> Html:
    return tag("p", f"Left out: {title}, because the run has no {_FILES[title]}.", class_="missing")


def _resource(name: str) -> Html:
    return Html((files(__package__) / name).read_text(encoding="utf-8"))
