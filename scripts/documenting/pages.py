"""Writes the documentation as HTML that needs no network: ``index.html``, ``guides/``, ``notebooks/`` and ``api/``.

The API reference is pdoc's (https://pdoc.dev): it reads Google docstrings, follows ``__all__``, searches in the browser
without a server, and needs no list of pages that somebody must keep. Notebooks are shown as they were executed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pdoc
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter
from pdoc.doc import Module
from pygments.formatters import HtmlFormatter

import lit_fednas
from lit_fednas.errors import ConfigError
from lit_fednas.records.files import check_output

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
GUIDES = Path(__file__).parent / "guides"
TEMPLATES = Path(__file__).parent / "templates"

#: What the index shows: the files of a folder.
SECTIONS = {
    "Tutorials": (NOTEBOOKS, "tutorial_*.ipynb"),
    "Guides": (GUIDES, "*.md"),
    "Results": (NOTEBOOKS, "results_*.ipynb"),
}


@dataclass(frozen=True)
class Page:
    """An entry of the index.

    Attributes:
        title: Plain text.
        link: Relative to the index.
        summary: The first paragraph as HTML.
    """

    title: str
    link: str
    summary: str


def public_modules(module: Module | None = None) -> list[Module]:
    """Returns the modules with a page in the API reference, the package first, as ``__all__`` says."""
    module = module or Module(lit_fednas)
    return [module, *(found for one in module.submodules for found in public_modules(one))]


def content_page(path: Path, link: str) -> tuple[Page, str]:
    """Returns the entry of a notebook or of a guide, and its cells as HTML.

    Args:
        path: The notebook, or a guide in Markdown, which is shown as a notebook of one cell.
        link: Where its page will be, relative to the index.

    Raises:
        ValueError: It begins without a title or a paragraph.
    """
    if path.suffix == ".md":
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(path.read_text())])
    else:
        notebook = nbformat.read(path, as_version=4)
    cells, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    cells = re.sub(r'(href="[\w./-]+)\.ipynb\b', r"\1.html", cells)
    cells = re.sub(r"(<table.*?</table>)", r'<div class="scroll">\1</div>', cells, flags=re.DOTALL)
    title = re.search(r"<h1[^>]*>(.*?)<a class=.anchor-link", cells, re.DOTALL)
    first = re.search(r"<p>(.*?)</p>", cells, re.DOTALL)
    if title is None or first is None:
        raise ValueError(f"{path.name}: begins without a title and a paragraph, which the index shows; add them")
    return Page(re.sub(r"<.*?>", "", title[1]), link, first[1]), cells


def module_page(module: Module) -> Page:
    """Returns the entry of a module."""
    summary = module.docstring.partition("\n\n")[0]
    return Page(module.fullname, f"api/{module.fullname.replace('.', '/')}.html", summary.replace("``", ""))


def build(folder: Path) -> None:
    """Writes all pages into a folder."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("page.html.j2")
    style = (TEMPLATES / "pages.css").read_text() + HtmlFormatter(style="default").get_style_defs(".highlight")
    sections: dict[str, list[Page]] = {}
    for name, (origin, pattern) in SECTIONS.items():
        (folder / origin.name).mkdir(parents=True, exist_ok=True)
        for path in sorted(origin.glob(pattern)):
            page, cells = content_page(path, f"{origin.name}/{path.stem}.html")
            sections.setdefault(name, []).append(page)
            (folder / page.link).write_text(template.render(title=page.title, style=style, cells=cells))
    sections["API reference"] = [module_page(module) for module in public_modules()]
    (folder / "index.html").write_text(template.render(title="lit_fednas", style=style, sections=sections))
    pdoc.render.configure(docformat="google", show_source=False, template_directory=TEMPLATES / "pdoc")
    pdoc.pdoc("lit_fednas", output_directory=folder / "api")


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/docs"))
    folder = parser.parse_args(args).folder
    try:
        check_output(folder / "index.html", *folder.glob("*/*.html"))
    except ConfigError as error:
        parser.error(str(error))
    build(folder)
    print(f"written: {folder / 'index.html'}")


if __name__ == "__main__":
    main()
