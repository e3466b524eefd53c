"""Text of quantities, tables and progress: units and prefixes of costs, aligned columns, bars."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple


class Quantity(NamedTuple):
    """The meaning of a number: label, unit, and whether prefixes k, M, G, T stand for powers of a thousand."""

    label: str
    unit: str = ""
    prefixed: bool = True


#: Okabe and Ito's colours without the yellow, which is too light on white; greys for backgrounds.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
GREY, GRID = "#9a9a9a", "#e6e6e6"

#: The costs of ``lit_fednas.records.COST_NAMES``, other costs that a tier may limit, and those of a run's ledger.
QUANTITIES = {
    "macs": Quantity("MACs per example"),
    "parameters": Quantity("parameters"),
    "bytes": Quantity("bytes sent one way", "B"),
    "activation_bytes": Quantity("peak of activations", "B"),
    "memory_bytes": Quantity("bytes sent and peak of activations", "B"),
    "operations": Quantity("operations per example"),
    "latency_ms": Quantity("latency", "ms", prefixed=False),
    "spent_macs": Quantity("MACs so far"),
    "spent_bytes": Quantity("bytes so far", "B"),
    "budget": Quantity("budget"),
}
QUANTITIES |= dict.fromkeys(("macs_per_example", "macs_of_a_client", "macs_in_all"), QUANTITIES["macs"])
QUANTITIES |= dict.fromkeys(("bytes_down", "bytes_up"), QUANTITIES["bytes"])
#: Headings that differ from the names of their columns.
_HEADINGS = {"arch": "architecture", "eligible": "clients", "macs_per_example": "MACs", "latency_ms": "latency"}
_HEADINGS |= {"activation_bytes": "activations", "bytes_down": "sent down", "bytes_up": "sent up"}
#: Columns of counts or means of counts, which are not metrics.
_COUNTS = {"eligible", "rounds", "clients", "runs"}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DASH = "–"


def _prefix(number: float) -> tuple[float, str]:
    """Returns the greatest power of a thousand that a number reaches, and its symbol."""
    return next(((scale, symbol) for scale, symbol in _PREFIXES if abs(number) >= scale), (1.0, ""))


def axis(name: str, largest: float) -> tuple[float, str]:
    """Returns the divisor of a cost and its axis label, such as ``bytes sent one way (MB)``."""
    quantity = QUANTITIES.get(name, Quantity(name.replace("_", " "), prefixed=False))
    scale, symbol = _prefix(largest) if quantity.prefixed else (1.0, "")
    unit = symbol + quantity.unit
    return scale, f"{quantity.label} ({unit})" if unit else quantity.label


def short(number: float | None, unit: str = "", prefixed: bool = True) -> str:
    """Returns a number in three digits with its prefix, such as ``2.42 MB``, or a dash."""
    if number is None or number != number:
        return _DASH
    scale, symbol = _prefix(number) if prefixed else (1.0, "")
    value = number / scale
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {symbol}{unit}".strip()


def cost_text(name: str, number: float | None) -> str:
    """Returns a cost with its unit; ``name`` is one of :data:`QUANTITIES`."""
    quantity = QUANTITIES[name]
    return short(number, quantity.unit, quantity.prefixed)


def percent(share: float) -> str:
    """Returns a share in percent with at most three digits, such as ``72.3%``."""
    return f"{100 * share:.3g}%"


def scale_of(metric: str) -> tuple[float, str]:
    """Returns the display factor of a metric, and the unit after its name."""
    return (100.0, " (%)") if metric.removesuffix("_before").endswith("accuracy") else (1.0, "")


def metric_text(metric: str, value: float | None, unit: str = "") -> str:
    """Returns a metric's value: accuracies in percent with one decimal and ``unit``, others with four decimals."""
    scale, in_percent = scale_of(metric)
    if value is None or value != value:
        return _DASH
    return f"{scale * value:.1f}{unit}" if in_percent else f"{value:.4f}"


def heading(name: str) -> str:
    """Returns the heading of a column, such as ``test accuracy (%)`` or ``MACs``."""
    words = _HEADINGS.get(name, name.replace("_", " ").replace("macs", "MACs"))
    return f"{words}{scale_of(name)[1]}"


def cell_text(name: str, value: Any) -> str:
    """Returns the text of a value in a column: a cost with its unit, a count, a metric, or a dash."""
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return _DASH
    if name in QUANTITIES:
        return cost_text(name, value)
    if isinstance(value, float) and name not in _COUNTS:
        return metric_text(name, value)
    return f"{value:,.1f}".removesuffix(".0")


def rows_text(rows: Iterable[Mapping[str, Any]], names: Sequence[str], left: int = 1) -> str:
    """Returns columns of rows as aligned text; the first ``left`` columns are words.

    Example:
        >>> print(rows_text([{"tier": "small", "macs": 24_123, "val_accuracy": 0.5}], ["tier", "macs", "val_accuracy"]))
        tier     MACs  val accuracy (%)
        small  24.1 k              50.0
    """
    body = [[cell_text(name, row.get(name)) for name in names] for row in rows]
    return text_table([*map(heading, names)], body, left)


def text_table(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1, markdown: bool = False) -> str:
    """Returns a table with its first ``left`` columns aligned to the left, and the others to the right."""
    from tabulate import tabulate  # a slow import, which most commands do not need

    style = {"disable_numparse": True, "colalign": ["left" if n < left else "right" for n in range(len(head))]}
    if markdown:
        head, *body = [[cell.replace("|", "\\|") for cell in row] for row in (head, *body)]
        return tabulate(body, head, "pipe", **style)
    if sys.stdout.isatty():
        head, body = _fitted(head, body, shutil.get_terminal_size().columns + 2)
    text = tabulate([head, *body], tablefmt="plain", **style)  # tabulate would pad headers
    return "\n".join(line.rstrip() for line in text.splitlines())


def _fitted(head: Sequence[str], body: Sequence[Sequence[str]], room: int) -> Sequence[Sequence[Any]]:
    """Returns a table within ``room`` characters: a word of the head per line, and the widest cells wrapped."""
    if sum(2 + max(map(len, cells)) for cells in zip(head, *body, strict=True)) <= room:
        return head, body
    head = [name.replace(" ", "\n") for name in head]
    widths = [max(map(len, "\n".join(cells).splitlines())) for cells in zip(head, *body, strict=True)]
    limit = next((n for n in range(max(widths), 8, -1) if sum(2 + min(n, width) for width in widths) <= room), 8)
    fill = textwrap.TextWrapper(limit, break_long_words=False, break_on_hyphens=False).fill
    return head, [
        [cell if len(cell) <= limit else fill(re.sub(r",(?! )(?=[^[]*])", ", ", cell)) for cell in row] for row in body
    ]


def listing(texts: Mapping[str, str], width: int = 100) -> str:
    """Returns names and their texts line by line; long texts wrap with an indent."""
    indent = max(map(len, texts)) + 4
    lines = (f"{'  ' + name:<{indent}}{text}" for name, text in texts.items())
    return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * indent) for line in lines)


def figure_text(text: object, max_length: int = 60) -> str:
    """Returns a user's text (a class, a method, a tier) so that matplotlib does not read it as mathematics."""
    decoded = str(text).encode("utf-8", "replace").decode()  # names of files may contain undecodable bytes
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in decoded).split())
    if len(line) > max_length:
        line = f"{line[: max_length // 2]}…{line[len(line) - (max_length - 1) // 2 :]}"
    line = line.replace("$", r"\$")
    return f"{' ' * line.startswith('_')}{line}"


def announce(text: str) -> None:
    """Prints to a terminal, but not to a log, that a step takes a while."""
    if sys.stderr.isatty() and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{text} ...", file=sys.stderr, flush=True)


def draws_bars() -> bool:
    """Returns whether a progress bar can be drawn: in a terminal or a notebook."""
    ipython = sys.modules.get("IPython")
    return sys.stderr.isatty() or (ipython is not None and hasattr(ipython.get_ipython(), "kernel"))


class Progress:
    """A loop's progress: a bar if possible, otherwise a line at the end and at most every ``seconds``."""

    def __init__(
        self, unit: str, total: int | None, start: int, title: str = "", seconds: float = 10.0, enabled: bool = True
    ) -> None:
        from tqdm.auto import tqdm

        bar = enabled and draws_bars()
        self._bar = tqdm(total=total, initial=start, desc=title or f"{unit}s", unit=unit, disable=not bar)
        self._enabled, self._unit, self._start, self._title, self._seconds = enabled, unit, start, title, seconds
        self._begun = self._printed = perf_counter()
        self._line = ""  # not yet printed

    def show(self, done: int, figures: Mapping[str, str]) -> None:
        """Shows the number of finished units, and figures by name."""
        if not self._bar.disable:
            self._bar.set_postfix(figures, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        time = perf_counter()
        total = "" if self._bar.total is None else f"/{self._bar.total}"
        pace = f"{(time - self._begun) / (done - self._start):.2f} s/{self._unit}"
        texts = [f"{self._unit} {done}{total}", *(f"{name} {text}" for name, text in figures.items()), pace]
        self._line = (f"{self._title}: " if self._title else "") + "  ".join(texts)
        if time - self._printed >= self._seconds:
            self._printed = time
            self._print()

    def close(self) -> None:
        """Ends the bar, or prints the last line."""
        self._bar.close()
        self._print()

    def _print(self) -> None:
        if self._line and self._enabled:
            print(self._line, file=sys.stderr, flush=True)
        self._line = ""
