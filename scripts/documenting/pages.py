"""Writes the documentation as HTML for reading offline: ``index.html``, the pages that it lists, and ``api/``.

pdoc (https://pdoc.dev) makes the API reference: it reads Google docstrings, follows ``__all__``, searches in the
browser without a server, and needs no list of pages. Notebooks keep their stored outputs, and verdicts on a study's
claims come from its stored results. The index searches all pages and the names of the API.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path

import nbformat
import pandas as pd
import pdoc
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter
from pdoc.doc import Module
from pygments.formatters import HtmlFormatter

import lit_fednas
from lit_fednas.errors import ConfigError
from lit_fednas.records.files import check_output
from lit_fednas.studies import judged, read_study

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
GUIDES = Path(__file__).parent / "guides"
TEMPLATES = Path(__file__).parent / "templates"

#: Sections of the index: a folder's named files in this order, or its files that match a pattern and have no section.
SECTIONS: dict[str, tuple[Path, str]] = {
    "Start": (GUIDES, "install quickstart"),
    "Tutorials": (NOTEBOOKS, "tutorial_*.ipynb"),
    "Concepts": (GUIDES, "rounds tiers costs evaluation privacy"),
    "Systems": (GUIDES / "systems", "*.md"),
    "Guides": (GUIDES, "*.md"),
    "Results": (NOTEBOOKS / "reproduction", "results_*.ipynb"),
    "Papers": (ROOT / "configs" / "reproduction", "*.md"),
    "Project": (GUIDES, "contributing versioning security"),
}
#: A command that judges the results of a study; a page shows its table.
JUDGED = re.compile(r"^lit-fednas study ((?:studies|reproduction)/\w+\.yaml) --judge --results (\S+)$", re.MULTILINE)
_JUDGED_LINK = "[how claims are judged](../guides/studies.html)"


@dataclass(frozen=True)
class Page:
    """An entry of the index.

    Attributes:
        title: Title as plain text.
        link: Address relative to the index.
        summary: First paragraph as HTML, without links.
    """

    title: str
    link: str
    summary: str


def files_of_sections() -> dict[str, list[Path]]:
    """Returns the files of each section; a guide without a section is in "Guides"."""
    listed = {GUIDES / f"{stem}.md" for _, stems in SECTIONS.values() if "*" not in stems for stem in stems.split()}
    return {
        section: [path for path in sorted(folder.glob(pattern)) if path not in listed]
        if "*" in pattern
        else [folder / f"{stem}.md" for stem in pattern.split()]
        for section, (folder, pattern) in SECTIONS.items()
    }


def public_modules(module: Module | None = None) -> list[Module]:
    """Returns the modules of the API reference in the order of ``__all__``, the package first."""
    module = module or Module(lit_fednas)
    return [module, *(page for submodule in module.submodules for page in public_modules(submodule))]


def verdicts(command: re.Match[str]) -> str:
    """Returns the table of verdicts of a command."""
    claims = judged([read_study(command[1])], pd.read_csv(ROOT / command[2]))
    effects = [f"{claim.effect:.3f} ({claim.low:.3f} to {claim.high:.3f})" for claim in claims.itertuples()]
    columns = claims[["where", "verdict", "claim"]].assign(**{"effect (95 %)": effects, "seeds": claims["seeds"]})
    with pd.option_context("display.max_colwidth", None):
        table = columns.to_html(index=False, border=0, classes="verdicts")
    return f"{table}\n\nMeans over the seeds; 0.01 in accuracy is one percentage point ({_JUDGED_LINK})."


def with_verdicts(text: str) -> str:
    """Returns a guide with the tables of verdicts after each block of commands."""
    return re.sub(
        r"```bash\n.*?```",
        lambda block: "\n\n".join([block[0], *map(verdicts, JUDGED.finditer(block[0]))]),
        text,
        flags=re.DOTALL,
    )


def page_link(folder: Path, link: re.Match[str]) -> str:
    """Returns the address of the page of a linked guide or notebook."""
    file = (folder / link[1]).resolve()
    headings = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if link[2] else []
    anchors = [f"#{name}" for name in (heading.replace(" ", "-") for heading in headings) if name.lower() == link[2]]
    return f"../{file.parent.name}/{file.stem}.html{''.join(anchors[:1])}"


def content_page(path: Path, link: str) -> tuple[Page, str]:
    """Returns the index entry of a notebook or a guide, and its cells as HTML."""
    if path.suffix == ".md":  # a guide becomes a notebook of one cell
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(with_verdicts(path.read_text()))])
    else:
        notebook = nbformat.read(path, as_version=4)
    cells, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    cells = re.sub(r'(?<=href=")(?!\w+:)([^"#]+\.(?:md|ipynb))#?([^"]*)', partial(page_link, path.parent), cells)
    cells = re.sub(r"(<table.*?</table>)", r'<div class="scroll">\1</div>', cells, flags=re.DOTALL)
    if path.name.startswith("results_"):  # readers want the results, so the code is folded
        folded = r"<details><summary>Code</summary>\1</details>"
        cells = re.sub(r'(<div class="input_area">.*?</pre></div>\s*</div>)', folded, cells, flags=re.DOTALL)
    title = re.search(r"<h1[^>]*>(.*?)<a class=.anchor-link", cells, re.DOTALL)
    first = re.search(r"<p>(.*?)</p>", cells, re.DOTALL)
    if title is None or first is None:
        raise ValueError(f"{path.name}: must begin with a title and a paragraph for the index; add them")
    return Page(re.sub(r"<.*?>", "", title[1]), link, re.sub(r"</?a\b[^>]*>", "", first[1])), cells


def module_page(module: Module) -> Page:
    summary = module.docstring.partition("\n\n")[0]
    return Page(module.fullname, f"api/{module.fullname.replace('.', '/')}.html", summary.replace("``", ""))


def searched(page: Page, cells: str) -> Iterator[tuple[str, str, str]]:
    """Yields the title, the link and the text of each section of a page."""
    for part in re.split(r"(?=<h[12] id=)", cells)[1:]:
        heading = re.match(r'<h([12]) id="([^"]+)">(.*?)<a', part, re.DOTALL)
        if heading is not None:
            level, anchor, name = heading.groups()
            text = re.sub(r"<(table|style).*?</\1>|</?(p|li|pre|div|h\d)\b[^>]*>", " ", part, flags=re.DOTALL)
            text = re.sub(r"<[^>]+>|¶", "", text)
            title = page.title if level == "1" else f"{page.title}: {re.sub('<.*?>', '', name)}"
            yield unescape(title), f"{page.link}#{anchor}", " ".join(unescape(text).split())


def build(folder: Path) -> None:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("page.html.j2")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    style = (TEMPLATES / "pages.css").read_text() + light + f"@media (prefers-color-scheme: dark) {{{dark}}}"
    files = files_of_sections()
    contents = {
        section: [content_page(path, f"{path.parent.name}/{path.stem}.html") for path in paths]
        for section, paths in files.items()
    }
    sections = {section: [page for page, _ in pages] for section, pages in contents.items()}
    for page, cells in (entry for pages in contents.values() for entry in pages):
        (folder / page.link).parent.mkdir(parents=True, exist_ok=True)
        (folder / page.link).write_text(template.render(page=page, style=style, cells=cells, sections=sections))
    modules = public_modules()
    index = [row for pages in contents.values() for page, cells in pages for row in searched(page, cells)]
    index += [
        (f"{module.fullname}.{api.name}", f"{module_page(module).link}#{api.name}", api.docstring.partition("\n\n")[0])
        for module in modules
        for api in module.own_members
        if api.kind in ("class", "function") and not api.name.startswith("_")
    ]
    (folder / "search.js").write_text(f"const entries = {json.dumps(index)};\n" + (TEMPLATES / "search.js").read_text())
    sections["API reference"] = [module_page(module) for module in modules]
    (folder / "index.html").write_text(template.render(style=style, sections=sections))
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
