"""How the data are dealt to the clients, as ``partition.csv`` and ``partition.png`` (SuperFed, Figure 9).

Counts are each client's examples of each class, ``[clients, classes]``: arrays, or sparse ones. Of many clients the
picture shows some that are evenly spaced, of many classes the most frequent.
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.sparse import csr_array

from lit_fednas.formatting import GRID, PALETTE, figure_text
from lit_fednas.records.files import MARK, replace_text, replacing, table_text

#: So many clients and classes are shown one by one, if a picture has no more than so many cells.
SHOWN, SHOWN_CLASSES, CELLS = 200, 100, 8_000
#: ``partition.csv`` is written with so many cells at most.
LARGEST_TABLE = 1_000_000
COLOUR = PALETTE[0]
#: So many dots are drawn one by one in an SVG; more are an image in it.
MOST_DOTS = 1_000

log = logging.getLogger(__name__)

Counts: TypeAlias = np.ndarray | csr_array


def plot_partition(counts: Counts, class_names: Sequence[str]) -> Figure:
    """Returns a figure with a dot per client and class whose area is proportional to the number of examples."""
    # the largest dot fills its cell; where cells are narrow it may reach into its neighbours
    everyone = csr_array(counts)
    labels = most_frequent(everyone, SHOWN_CLASSES)
    num_clients = min(everyone.shape[0], SHOWN, max(1, CELLS // len(labels)))
    numbers = np.arange(num_clients) * everyone.shape[0] // num_clients
    counts, num_classes = everyone[numbers][:, labels].toarray(), len(labels)
    cell = float(np.clip(11 / num_clients, 0.12, 0.36))  # inches
    height = float(np.clip(12 / num_classes, 0.12, max(cell, 0.26)))
    names = [figure_text(class_names[label], 40) for label in labels]
    longest = max(map(len, names))
    size = num_clients * cell + 1.9 + 0.06 * max(0, longest - 16), num_classes * height + 1.1
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    values = counts[clients, classes]
    largest = 72**2 * min(cell * height, max(0.2, 0.94 * min(cell, height)) ** 2)  # in points²
    sizes = np.maximum(largest * values / max(1, counts.max()), 1.0)  # a single example stays visible
    style: dict[str, Any] = {"color": COLOUR, "alpha": 0.85, "linewidths": 0, "zorder": 2, "clip_on": False}
    dots = axes.scatter(clients, classes, s=sizes, rasterized=len(values) > MOST_DOTS, **style)
    _frame(figure, numbers, names, height)
    if len(values):
        axes.legend(
            *dots.legend_elements(
                "sizes", 3, fmt="{x:,.0f}", func=lambda area: area * counts.max() / largest, color=COLOUR
            ),
            title="examples",
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            fontsize=8,
            title_fontsize=8,
            labelspacing=max(0.6, largest**0.5 / 8 / 1.5),  # in font sizes: the dots must not touch
            handletextpad=max(0.8, largest**0.5 / 8 / 2),
        )
    if counts.shape != everyone.shape:
        title = f"{num_clients} of {everyone.shape[0]:,} clients, evenly spaced by number"
        if num_classes < everyone.shape[1]:
            title += f"; the {num_classes} most frequent of {everyone.shape[1]:,} classes"
        axes.set_title(title, fontsize=9)
    return figure


def write_partition(counts: Counts, class_names: Sequence[str], folder: Path) -> list[Path]:
    """Writes a partition's picture, and its table up to a million clients times classes; returns their paths."""
    table, picture = folder / "partition.csv", folder / "partition.png"
    if whole := math.prod(counts.shape) <= LARGEST_TABLE:
        rows = ([client, sum(row), *row] for client, row in enumerate(csr_array(counts).toarray().tolist()))
        replace_text(table, table_text([["client", "size", *class_names], *rows]))
    else:
        log.info(
            "partition.csv is left out: %s clients times %s classes are more than %s; class_counts has them",
            *(f"{number:,}" for number in (*counts.shape, LARGEST_TABLE)),
        )
    with replacing(picture) as file:
        plot_partition(counts, class_names).savefig(file, dpi=150, metadata={"Software": MARK.decode()})
    return [table, picture] if whole else [picture]


def most_frequent(counts: csr_array, most: int) -> np.ndarray:
    """Returns the classes, or so many that have the most examples, ascending."""
    return np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:most])


def _frame(figure: Figure, numbers: np.ndarray, class_names: Sequence[str], height: float) -> None:
    axes = figure.axes[0]
    lowest, highest = len(class_names) - 0.4, -0.6
    axes.set(xlim=(-0.6, len(numbers) - 0.4), ylim=(lowest, highest), xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if numbers[-1] >= len(numbers):  # positions are not the clients' numbers
        axes.xaxis.set_major_formatter(lambda place, _: f"{numbers[int(place)]:,}" if 0 <= place < len(numbers) else "")
    ticks = range(0, len(class_names), math.ceil(0.16 / height))
    axes.set_yticks(ticks, [class_names[i] for i in ticks], fontsize=8)
    axes.tick_params(length=0, labelsize=8)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
