"""How quantities, tables and progress are written: units and prefixes of costs, aligned columns, bars."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """What a number means.

    Attributes:
        label: In words.
        unit: Symbol behind the number; may be empty.
        prefixed: Whether k, M, G, T stand for powers of a thousand.
    """

    label: str
    unit: str = ""
    prefixed: bool = True


#: The costs of ``lit_fednas.records.COST_NAMES``, what a tier may limit beside them, and those of a run's ledger.
QUANTITIES = {
    "macs": Quantity("MACs per example"),
    "parameters": Quantity("parameters"),
    "bytes": Quantity("bytes sent one way", "B"),
    "activation_bytes": Quantity("peak of activations", "B"),
    "memory_bytes": Quantity("bytes sent and peak of activations", "B"),
    "operations": Quantity("operations per example"),
    "latency_ms": Quantity("latency", "ms", prefixed=False),
    "total_macs": Quantity("MACs so far"),
    "total_bytes": Quantity("bytes so far", "B"),
}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def prefix(number: float) -> tuple[float, str]:
    """Returns the greatest power of a thousand within a number, and its symbol.

    Example:
        >>> prefix(2_416_896)
        (1000000.0, 'M')
    """
    return next(((scale, symbol) for scale, symbol in _PREFIXES if abs(number) >= scale), (1.0, ""))


def axis(name: str, largest: float) -> tuple[float, str]:
    """Returns what to divide a cost by, and its axis label.

    Args:
        name: One of :data:`QUANTITIES`; another name is its own label.
        largest: The greatest number on the axis.

    Example:
        >>> axis("bytes", 1.5e6)
        (1000000.0, 'bytes sent one way (MB)')
    """
    quantity = QUANTITIES.get(name, Quantity(name.replace("_", " "), prefixed=False))
    scale, symbol = prefix(largest) if quantity.prefixed else (1.0, "")
    unit = symbol + quantity.unit
    return scale, f"{quantity.label} ({unit})" if unit else quantity.label


def short(number: float | None, unit: str = "", prefixed: bool = True) -> str:
    """Returns a number in three digits with its prefix; a dash where there is none.

    Example:
        >>> short(2_416_896, "B"), short(0.28, "ms", prefixed=False), short(None)
        ('2.42 MB', '0.28 ms', '–')
    """
    if number is None or number != number:
        return "–"
    scale, symbol = prefix(number) if prefixed else (1.0, "")
    value = number / scale
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {symbol}{unit}".strip()


def cost_text(name: str, number: float | None) -> str:
    """Returns a cost with its unit.

    Example:
        >>> cost_text("macs", 766_080)
        '766 k'
    """
    quantity = QUANTITIES[name]
    return short(number, quantity.unit, quantity.prefixed)


def fixed(number: float | None, digits: int = 4) -> str:
    """Returns a number with so many digits behind the point; a dash where there is none.

    Example:
        >>> fixed(0.5), fixed(2, 1), fixed(float("nan"))
        ('0.5000', '2.0', '–')
    """
    return "–" if number is None or number != number else f"{number:.{digits}f}"


def percent(share: float) -> str:
    """Returns a share in percent, in at most three digits.

    Example:
        >>> percent(0.5), percent(0.7234), percent(1.0)
        ('50%', '72.3%', '100%')
    """
    return f"{100 * share:.3g}%"


def spread(values: Collection[float], digits: int = 1, scale: float = 1.0) -> str:
    """Returns a mean, and the least and greatest where there are several values; a dash where there are none.

    Args:
        values: The values.
        digits: Behind the point.
        scale: What the values are multiplied by: 100 for percent.

    Example:
        >>> spread([0.5, 0.5204], scale=100), spread([25]), spread([])
        ('51.0 (50.0 to 52.0)', '25.0', '–')
    """
    if not len(values):
        return "–"
    low, mean, high = (f"{scale * one:.{digits}f}" for one in (min(values), sum(values) / len(values), max(values)))
    return f"{mean} ({low} to {high})" if len(values) > 1 else mean


def text_table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1, markdown: bool = False) -> str:
    """Returns a table with aligned columns: the first to the left, figures to the right.

    Args:
        head: The columns' names.
        body: Rows of as many cells.
        left: How many columns are text.
        markdown: Whether the table is one of Markdown.

    Example:
        >>> print(text_table(["tier", "MB"], [["small", "1.5"], ["large", "12.0"]]))
        tier     MB
        small   1.5
        large  12.0
    """
    from tabulate import tabulate  # here: it takes longer to import than all that starts without tables

    style = {"disable_numparse": True, "colalign": ["left" if n < left else "right" for n in range(len(head))]}
    if markdown:
        head, *body = [[cell.replace("|", "\\|") for cell in row] for row in (head, *body)]
        return tabulate(body, head, "pipe", **style)
    text = tabulate([head, *body], tablefmt="plain", **style)  # heads of their own would be padded
    return "\n".join(line.rstrip() for line in text.splitlines())


def listing(texts: Mapping[str, str], width: int = 100) -> str:
    """Returns names and what they stand for, a line each; long texts go on below themselves.

    Args:
        texts: By name.
        width: Of a line, in characters.

    Example:
        >>> print(listing({"fit": "Trains the global weights", "validate": "Evaluates"}))
          fit       Trains the global weights
          validate  Evaluates
    """
    place = max(map(len, texts)) + 4
    lines = (f"{'  ' + name:<{place}}{text}" for name, text in texts.items())
    return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * place) for line in lines)


def figure_text(text: object, most: int = 60) -> str:
    r"""Returns a user's text (a class, a method, a tier, a setting) as what matplotlib draws it from.

    It is one line, of which the middle is left out if it is long. Dollars are no mathematics, and a text that begins
    with ``_`` is not left out of legends.

    Args:
        text: The text.
        most: Characters.

    Example:
        >>> figure_text("$0_to_$50"), figure_text("_a\nb"), figure_text("x" * 99, most=7)
        ('\\$0_to_\\$50', ' _a b', 'xxx…xxx')
    """
    known = str(text).encode("utf-8", "replace").decode()  # names of files may hold what is no character
    line = " ".join("".join(one if one.isprintable() else " " for one in known).split())
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[len(line) - (most - 1) // 2 :]}"
    return f"{' ' * line.startswith('_')}{line}".replace("$", r"\$")


def draws_bars() -> bool:
    """Returns whether a progress bar can be drawn: in a terminal or in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return sys.stderr.isatty() or (ipython is not None and hasattr(ipython.get_ipython(), "kernel"))
