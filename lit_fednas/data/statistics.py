"""What a partition looks like: a table, CSV rows, and the dot plot of SuperFed's Figure 9.

Of many clients the table shows the first, and the plot some that are evenly spaced; a summary has all.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.formatting import text_table
from lit_fednas.records.files import check_output, replace_text, replacing

COLOUR = "#2a6fbb"
#: So many clients are shown one by one; of more there is a summary too.
SHOWN = 200
#: As many rows has a table of more clients.
FIRST = 20
#: ``partition.csv`` is written of so many clients at most.
LARGEST_TABLE = 100_000
_BINS = 40
_BELOW = 2.2  # inches of the histograms

log = logging.getLogger(__name__)


def partition_rows(counts: np.ndarray, class_names: Sequence[str]) -> list[list[Any]]:
    """Returns a header, then each client's number, size and count of each class.

    Example:
        >>> partition_rows(np.array([[1, 1], [0, 1]]), ["cat", "dog"])
        [['client', 'size', 'cat', 'dog'], [0, 2, 1, 1], [1, 1, 0, 1]]
    """
    header = ["client", "size", *class_names]
    return [header, *([client, sum(row), *row] for client, row in enumerate(counts.tolist()))]


def partition_table(counts: np.ndarray, class_names: Sequence[str]) -> str:
    """Returns the counts as aligned text; zeros are dots, and the last row is the total.

    Of more than 200 clients it shows the first 20, and a summary below the total.

    Example:
        >>> print(partition_table(np.array([[1, 1], [0, 1]]), ["cat", "dog"]))
        client  size  cat  dog
             0     2    1    1
             1     1    .    1
         total     3    1    2
    """
    many = len(counts) > SHOWN
    header, *rows = partition_rows(counts[:FIRST] if many else counts, class_names)
    if many:
        rows.append(["..."] * len(header))
    totals = counts.sum(axis=0).tolist()
    rows.append(["total", sum(totals), *totals])
    cells = [[str(row[0]), *(str(cell or ".") for cell in row[1:])] for row in rows]
    table = text_table(header, cells, left=0)
    return f"{table}\n\n{summary_table(counts)}" if many else table


def measures(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns by name what is measured of each client, float64 or int64 [clients].

    Args:
        counts: Each client's examples of each class, ``[clients, classes]``.

    Returns:
        The number of its examples; of the classes that it has; and the total variation distance between its class
        mix and that of all clients together: 0 where they are equal, 1 where they have no class in common.

    Example:
        >>> {name: values.tolist() for name, values in measures(np.array([[1, 1], [0, 2]])).items()}
        {'examples': [2, 2], 'classes': [2, 1], 'distance of the class mix': [0.25, 0.25]}
    """
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    distance = np.zeros(len(counts))
    for label in np.flatnonzero(totals):  # one by one: all at once would take as much memory again, and more
        distance += abs(counts[:, label] / np.maximum(sizes, 1) - totals[label] / totals.sum()) / 2
    classes = np.count_nonzero(counts, axis=1)
    return {"examples": sizes, "classes": classes, "distance of the class mix": distance}


def summary_table(counts: np.ndarray) -> str:
    """Returns the quantiles over clients of what :func:`measures` has, as aligned text.

    Example:
        >>> print(summary_table(np.array([[1, 1], [0, 1], [0, 2]])))
        3 clients                  least  25%  median   75%  most
        examples                       1  1.5       2     2     2
        classes                        1    1       1   1.5     2
        distance of the class mix    0.2  0.2     0.2  0.25   0.3
    """
    rows = [
        [name, *(f"{value:.4g}" for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))]
        for name, values in measures(counts).items()
    ]
    return text_table([f"{len(counts):,} clients", "least", "25%", "median", "75%", "most"], rows)


def plot_partition(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Returns a figure with a dot per client and class whose area is proportional to the number of examples.

    The largest dot fills its cell; where cells are narrow it may reach into its neighbours. Of more than 200 clients
    it shows 200 that are evenly spaced by their numbers, and below them histograms over all clients. Save it with
    ``figure.savefig``; no window and no pyplot state is involved.

    Example:
        >>> len(plot_partition(np.array([[1, 1], [0, 1]]), ["cat", "dog"]).axes)
        1
    """
    everyone, many = counts, len(counts) > SHOWN
    numbers = np.arange(SHOWN) * len(counts) // SHOWN if many else np.arange(len(counts))
    counts = counts[numbers]
    num_clients, num_classes = counts.shape
    cell = float(np.clip(11 / num_clients, 0.12, 0.36))  # inches
    height = float(np.clip(12 / num_classes, 0.12, max(cell, 0.26)))
    size = num_clients * cell + 1.9, num_classes * height + 1.1
    figure = Figure(figsize=(size[0], size[1] + _BELOW * many), layout="constrained")
    grid = figure.add_gridspec(1 + many, 3, height_ratios=[size[1], *[_BELOW] * many])
    axes = figure.add_subplot(grid[0, :])
    clients, classes = np.nonzero(counts)
    values = counts[clients, classes]
    largest = 72**2 * min(cell * height, max(0.2, 0.94 * min(cell, height)) ** 2)  # in points²
    sizes = np.maximum(largest * values / max(1, counts.max()), 1.0)  # a single example stays visible
    axes.scatter(clients, classes, s=sizes, color=COLOUR, alpha=0.85, linewidths=0, zorder=2, clip_on=False)
    _frame(figure, numbers, class_names, height)
    _legend(figure, int(counts.max()), largest)
    if many:
        axes.set_title(f"{num_clients} of {len(everyone):,} clients, evenly spaced by number", fontsize=9)
        for place, (name, each) in enumerate(measures(everyone).items()):
            _histogram(figure.add_subplot(grid[1, place]), name, each)
    return figure


def write_partition(counts: np.ndarray, class_names: Sequence[str], folder: Path) -> None:
    """Writes a partition's table and picture; above 100,000 clients the picture alone.

    Args:
        counts: Each client's examples of each class, ``[clients, classes]``.
        class_names: One name per class.
        folder: Where to write ``partition.csv`` and ``partition.png``.
    """
    if len(counts) <= LARGEST_TABLE:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(partition_rows(counts, class_names))
        replace_text(folder / "partition.csv", text.getvalue())
    else:
        log.info(
            "partition.csv is left out: %s clients are more than %s; partition.png has a summary, and the data "
            "module's class_counts has all of them",
            *(f"{number:,}" for number in (len(counts), LARGEST_TABLE)),
        )
    with replacing(folder / "partition.png") as file:
        plot_partition(counts, class_names).savefig(file, dpi=150)


class ShowPartition:
    """The command ``partition``.

    Args:
        datamodule: The data.
    """

    def __init__(self, datamodule: FederatedDataModule) -> None:
        self.datamodule = datamodule

    def run(self, output: str = "partition") -> None:
        """Shows how the data are dealt to the clients: a table, and SuperFed's Fig. 9 as a picture.

        Args:
            output: A folder for ``partition.csv`` (of 100,000 clients at most) and ``partition.png``.

        Raises:
            ConfigError: The folder cannot be written to.
        """
        check_output(Path(output) / "partition.csv")
        data = self.datamodule
        data.prepare_data()
        data.setup("fit")
        shown = data.class_counts, data.strata
        print(partition_table(*shown))
        write_partition(*shown, Path(output))
        files = [f"{output}/partition.csv"] * (len(shown[0]) <= LARGEST_TABLE) + [f"{output}/partition.png"]
        print(f"written: {', '.join(files)}")


def _histogram(axes: Axes, name: str, values: np.ndarray) -> None:
    """Draws how many clients have which value; a bar is one or several whole numbers wide where values are."""
    low, high = values.min(), values.max()
    if values.dtype.kind == "i":
        width = -(-(high - low + 1) // _BINS)
        edges = np.arange(low, high + width + 1, width) - 0.5
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    else:
        edges = np.linspace(0, 1, _BINS + 1)
    axes.stairs(np.histogram(values, edges)[0], edges, fill=True, color=COLOUR)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(name, fontsize=8)
    axes.set_ylabel("clients", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _frame(figure: Figure, numbers: np.ndarray, class_names: Sequence[str], height: float) -> None:
    """Labels the axes and draws faint lines through the cells."""
    axes = figure.axes[0]
    lowest, highest = len(class_names) - 0.4, -0.6
    axes.set(xlim=(-0.6, len(numbers) - 0.4), ylim=(lowest, highest), xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if numbers[-1] >= SHOWN:  # positions are not the clients' numbers
        axes.xaxis.set_major_formatter(lambda place, _: f"{numbers[int(place)]:,}" if 0 <= place < SHOWN else "")
    ticks = range(0, len(class_names), max(1, round(0.16 / height)))
    axes.set_yticks(ticks, [class_names[i] for i in ticks], fontsize=8)
    axes.tick_params(length=0, labelsize=8)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _legend(figure: Figure, largest_count: int, largest: float) -> None:
    """Shows what the dots' areas mean: the largest count, a quarter and a sixteenth of it."""
    axes = figure.axes[0]
    shown = sorted({max(1, round(largest_count * share)) for share in (1 / 16, 1 / 4, 1)})
    handles = [
        axes.scatter([], [], s=largest * count / max(1, largest_count), color=COLOUR, linewidths=0) for count in shown
    ]
    labels = [f"{count:,}" for count in shown]
    axes.legend(
        handles,
        labels,
        title="examples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=max(0.6, largest**0.5 / 8 / 1.5),  # in font sizes: the dots must not touch
        handletextpad=max(0.8, largest**0.5 / 8 / 2),
    )
