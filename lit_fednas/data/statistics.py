"""What a partition looks like: a table, CSV rows, and the dot plot of SuperFed's Figure 9."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.formatting import text_table
from lit_fednas.records.files import check_output, replace_text, replacing

COLOUR = "#2a6fbb"


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

    Example:
        >>> print(partition_table(np.array([[1, 1], [0, 1]]), ["cat", "dog"]))
        client  size  cat  dog
             0     2    1    1
             1     1    .    1
         total     3    1    2
    """
    header, *rows = partition_rows(counts, class_names)
    totals = counts.sum(axis=0).tolist()
    rows.append(["total", sum(totals), *totals])
    cells = [[str(row[0]), *(str(cell or ".") for cell in row[1:])] for row in rows]
    return text_table(header, cells, left=0)


def plot_partition(counts: np.ndarray, class_names: Sequence[str]) -> Figure:
    """Returns a figure with a dot per client and class whose area is proportional to the number of examples.

    The largest dot fills its cell; where cells are narrow it may reach into its neighbours. Save it with
    ``figure.savefig``; no window and no pyplot state is involved.

    Example:
        >>> len(plot_partition(np.array([[1, 1], [0, 1]]), ["cat", "dog"]).axes)
        1
    """
    num_clients, num_classes = counts.shape
    cell = float(np.clip(11 / num_clients, 0.12, 0.36))  # inches
    height = float(np.clip(12 / num_classes, 0.12, max(cell, 0.26)))
    figure = Figure(figsize=(num_clients * cell + 1.9, num_classes * height + 1.1), layout="constrained")
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    values = counts[clients, classes]
    largest = 72**2 * min(cell * height, max(0.2, 0.94 * min(cell, height)) ** 2)  # in points²
    sizes = np.maximum(largest * values / max(1, counts.max()), 1.0)  # a single example stays visible
    axes.scatter(clients, classes, s=sizes, color=COLOUR, alpha=0.85, linewidths=0, zorder=2, clip_on=False)
    _frame(figure, num_clients, class_names, height)
    _legend(figure, int(counts.max()), largest)
    return figure


def write_partition(counts: np.ndarray, class_names: Sequence[str], folder: Path) -> None:
    """Writes a partition's table and picture.

    Args:
        counts: Each client's examples of each class, ``[clients, classes]``.
        class_names: One name per class.
        folder: Where to write ``partition.csv`` and ``partition.png``.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(partition_rows(counts, class_names))
    replace_text(folder / "partition.csv", text.getvalue())
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
            output: A folder for ``partition.csv`` and ``partition.png``.

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
        print(f"written: {output}/partition.csv, {output}/partition.png")


def _frame(figure: Figure, num_clients: int, class_names: Sequence[str], height: float) -> None:
    """Labels the axes and draws faint lines through the cells."""
    axes = figure.axes[0]
    lowest, highest = len(class_names) - 0.4, -0.6
    axes.set(xlim=(-0.6, num_clients - 0.4), ylim=(lowest, highest), xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
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
