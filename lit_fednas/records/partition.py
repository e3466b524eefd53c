"""The partition of the data over clients, as ``partition.csv`` and ``partition.png`` (SuperFed, Figure 9).

Counts are each client's examples of each class, ``[clients, classes]``: dense or sparse arrays. If clients are owners,
the table has a second column with their names, ``owner``, and the picture shows the names.
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.sparse import csr_array

from lit_fednas.formatting import figure_text
from lit_fednas.records.files import MARK, replace_text, replacing, table_text

#: Maximum numbers of clients (evenly spaced) and classes (the most frequent) in the picture.
MAX_CLIENTS, MAX_CLASSES = 200, 100
#: Maximum number of cells in ``partition.csv``.
MAX_CELLS = 1_000_000

log = logging.getLogger(__name__)

Counts: TypeAlias = np.ndarray | csr_array


def plot_partition(counts: Counts, class_names: Sequence[str], owners: Sequence[str] = ()) -> Figure:
    """Returns a figure with a cell per client and class; more examples are darker (dots in SuperFed's Fig. 9)."""
    all_counts = csr_array(counts)
    labels, num_clients = most_frequent(all_counts, MAX_CLASSES), min(all_counts.shape[0], MAX_CLIENTS)
    numbers = np.arange(num_clients) * all_counts.shape[0] // num_clients
    cells = all_counts[numbers][:, labels].toarray()
    size = np.clip(0.2 * num_clients + 2.5, 4, 12), np.clip(0.2 * len(labels) + 1.2, 2, 10)  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot(xlabel="client", ylabel="class")
    image = axes.imshow(cells.T, "Blues", aspect="auto", interpolation="none", vmin=0, vmax=max(1, cells.max()))
    figure.colorbar(image, label="examples", format="{x:,.0f}")
    ticks = range(0, len(labels), math.ceil(len(labels) / 50))
    axes.set_yticks(ticks, [figure_text(class_names[labels[tick]], 40) for tick in ticks])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    axes.xaxis.set_major_formatter(lambda tick, _: f"{numbers[int(tick)]:,}" if 0 <= tick < num_clients else "")
    if owners and num_clients <= MAX_CLIENTS // 4:
        axes.set_xticks(range(num_clients), [figure_text(owners[number], 20) for number in numbers], rotation=90)
    axes.tick_params(length=0, labelsize=8)
    if cells.shape != all_counts.shape:
        title = f"{num_clients} of {all_counts.shape[0]:,} clients, evenly spaced by number"
        if len(labels) < all_counts.shape[1]:
            title += f"; the {len(labels)} most frequent of {all_counts.shape[1]:,} classes"
        axes.set_title(title, fontsize=9)
    return figure


def write_partition(counts: Counts, class_names: Sequence[str], folder: Path, owners: Sequence[str] = ()) -> list[Path]:
    """Writes a partition's picture, and its table unless it is too large; returns their paths."""
    table, picture = folder / "partition.csv", folder / "partition.png"
    if has_table := math.prod(counts.shape) <= MAX_CELLS:
        names = [[name] for name in owners] or [[]] * counts.shape[0]
        cells = csr_array(counts).toarray().tolist()
        rows = ([client, *names[client], sum(row), *row] for client, row in enumerate(cells))
        replace_text(table, table_text([["client", *["owner"] * bool(owners), "size", *class_names], *rows]))
    else:
        log.info(
            "partition.csv is left out: %s clients times %s classes are more than %s; class_counts has them",
            *(f"{number:,}" for number in (*counts.shape, MAX_CELLS)),
        )
    with replacing(picture) as file:
        plot_partition(counts, class_names, owners).savefig(file, dpi=150, metadata={"Software": MARK.decode()})
    return [table, picture] if has_table else [picture]


def most_frequent(counts: csr_array, number: int) -> np.ndarray:
    """Returns at most ``number`` classes, those with the most examples, ascending."""
    return np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:number])
