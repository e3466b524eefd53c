"""A page of HTML that needs no network: a jinja2 template, with plotly's script inside where there are charts.

The script takes 4.8 MB (1.5 MB when a server or an archive compresses it), a run's charts 30 to 200 kB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from lit_fednas.analysis.report.blocks import Block, Chart, Charts
from lit_fednas.analysis.style import PALETTE
from lit_fednas.records.files import check_output, replace_text


def write_page(
    title: str,
    sections: Mapping[str, Sequence[Block]],
    path: Path | str,
    *,
    summary: str = "",
    tiles: Sequence[tuple[str, str, str]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Writes a page that can be sent as one file, and looks as the report of a run does.

    Args:
        title: The heading.
        sections: Blocks by the section's heading: texts, and what ``lit_fednas.analysis.report`` exports.
        path: The file.
        summary: Below the heading.
        tiles: Numbers below the summary: what each is, its value, and a note.
        notes: At the end.

    Returns:
        The path.

    Raises:
        ConfigError: The page cannot be written.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> from lit_fednas.analysis.report import frame_table
        >>> table = frame_table(pd.DataFrame({"method": ["a"], "accuracy": [0.5]}))
        >>> path = Path(tempfile.mkdtemp()) / "compare.html"
        >>> "<h2>Accuracy</h2>" in write_page("Two methods", {"Accuracy": [table]}, path).read_text()
        True
    """
    path = Path(path)
    check_output(path)
    replace_text(path, render(title, sections, summary=summary, tiles=tiles, notes=notes))
    return path


def render(
    title: str,
    sections: Mapping[str, Sequence[Block]],
    *,
    summary: str = "",
    tiles: Sequence[tuple[str, str, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Returns the page that :func:`write_page` writes."""
    templates = Environment(
        loader=PackageLoader("lit_fednas.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["kind"] = lambda one: type(one).__name__  # which macro shows it
    drawn = (
        one for blocks in sections.values() for block in blocks if isinstance(block, Charts) for one in block.charts
    )
    return templates.get_template("page.html.j2").render(
        title=title,
        summary=summary,
        tiles=tiles,
        sections=sections,
        notes=notes,
        palette=PALETTE,
        plotly=Markup(get_plotlyjs()) if any(isinstance(one, Chart) for one in drawn) else None,
    )
