"""How results are shown: aligned tables, JSON, and pictures in one style."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lit_fednas.benchmarks.measuring import quartiles
from lit_fednas.errors import ConfigError
from lit_fednas.formatting import text_table

LIBRARY, PLAIN, GREY = "#2a6fbb", "#d1702c", "#8a8a8a"
COLOURS = {"library": LIBRARY, "plain": PLAIN}
#: For series that stand beside each other, dark to light.
SERIES = ("#123d6b", "#2a6fbb", "#5aa0d8", "#8fc3e8", "#7a7a7a", "#b0b0b0")


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Aligned text: a head of the first row's names, and a line per row."""
    head = list(rows[0])
    return text_table(head, [[row[name] for name in head] for row in rows])


def between(values: Sequence[float], digits: int = 3) -> str:
    """The quartiles as text."""
    lower, upper = quartiles(values)
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Where and how it was measured."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "cores": cores(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "device": options.device,
        "threads": threads_of(options),
        "torch_threads": torch.get_num_threads(),
    }


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of(options: argparse.Namespace) -> int | None:
    """Torch's threads per process: as asked for, else several ranks' shares of the cores; nothing for one rank."""
    ranks = getattr(options, "ranks", 1)
    return options.threads or (None if ranks == 1 else max(1, cores() // ranks))


def counted(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


class Parser(argparse.ArgumentParser):
    """A parser of a benchmark's words, whose errors are told as those of other commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises what is told in one line."""
        raise ConfigError(f"{message} ({self.prog} --help lists all options)")


def common_options(parser: argparse.ArgumentParser) -> None:
    """Options that every benchmark has."""
    parser.add_argument("--threads", type=int, help="torch's threads in each process")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (.png, .pdf or .svg)")


def show(
    report: dict[str, Any],
    rows: Sequence[Mapping[str, str]],
    draw: Callable[[dict[str, Any]], Figure],
    options: argparse.Namespace,
) -> None:
    """Prints the table, and writes what was asked for."""
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        draw(report).savefig(options.plot, dpi=150)


def figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes side by side; no window and no global state is involved."""
    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(1, columns, squeeze=False)[0])


def frame(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels axes and leaves out what carries no information."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def points_and_median(axes: Axes, x: float, values: Sequence[float], filled: Sequence[bool] = ()) -> None:
    """All values as points (filled or hollow), their median as a bar, their quartiles as a shade."""
    width, colour = 0.5, LIBRARY
    lower, upper = quartiles(values)
    axes.fill_between([x - width / 2, x + width / 2], lower, upper, color=colour, alpha=0.15, linewidth=0)
    axes.plot([x - width / 2, x + width / 2], [median(values)] * 2, color=colour, linewidth=2.5)
    faces = [colour if fill else "white" for fill in filled or [True] * len(values)]
    # side by side, so that points do not hide each other
    places = [x + width * 0.8 * ((place + 0.5) / len(values) - 0.5) for place in range(len(values))]
    axes.scatter(places, values, s=16, facecolor=faces, edgecolor=colour, linewidths=0.8, zorder=3)


def shade(place: int, count: int, who: str) -> tuple[float, float, float]:
    """A colour of the library or the plain loop, the darker the later its place."""
    light = 0.6 * (1 - (place + 1) / count)
    return tuple(light + (1 - light) * part for part in to_rgb(COLOURS[who]))  # type: ignore[return-value]


def plain_numbers(axes: Axes) -> None:
    """Writes a logarithmic axis's numbers as 5 and 20, not as powers of ten."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
