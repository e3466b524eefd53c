"""Pages of headings, sentences, tables and charts, which need no network and no script."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lit_fednas.analysis.style import PALETTE
from lit_fednas.analysis.tables import html
from lit_fednas.records.files import check_output, replace_text

#: A part of a section: a sentence, or an object that renders itself as HTML.
Block: TypeAlias = Any


def write_page(
    title: str,
    sections: Mapping[str, Sequence[Block]],
    path: Path | str,
    *,
    summary: str = "",
    tiles: Sequence[tuple[str, str, str]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Writes a page as one file, in the look of a run's report.

    Args:
        title: The heading of the page.
        sections: Blocks by the section's heading: sentences, and objects that ``lit_fednas.analysis.report`` exports.
        path: The file to write.
        summary: The text below the heading.
        tiles: Numbers below the summary, each a name, a value and a note.
        notes: Sentences at the end.

    Returns:
        The path.

    Raises:
        ConfigError: The page cannot be written.
    """
    path = Path(path)
    check_output(path, overwrite=True)
    content = {"title": title, "summary": summary, "tiles": tiles, "sections": sections, "notes": notes}
    replace_text(path, html("page.html.j2", **content, palette=PALETTE))
    return path
