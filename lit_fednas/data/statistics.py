"""What a partition looks like, as text, and the command that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.formatting import text_table
from lit_fednas.records.files import check_output
from lit_fednas.records.partition import (
    SHOWN,
    SHOWN_CLASSES,
    Counts,
    has_table,
    measures,
    most_frequent,
    write_partition,
)

#: As many clients, or classes, has a table of more.
FIRST = 20


def partition_table(counts: Counts, class_names: Sequence[str]) -> str:
    """Returns the counts as aligned text; zeros are dots, and the last row is the total.

    Of more than 200 clients it shows the first 20, of more than 100 classes the 20 most frequent, and then a summary
    below the total.

    Example:
        >>> print(partition_table(np.array([[1, 1], [0, 1]]), ["cat", "dog"]))
        client  size  cat  dog
             0     2    1    1
             1     1    .    1
         total     3    1    2
    """
    counts = csr_array(counts)
    clients = FIRST if counts.shape[0] > SHOWN else counts.shape[0]
    classes = most_frequent(counts, FIRST if counts.shape[1] > SHOWN_CLASSES else counts.shape[1])
    rest = ["..."] * (len(classes) < counts.shape[1])
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    shown = counts[:clients][:, classes].toarray()
    rows = [[str(client), sizes[client], *row] for client, row in enumerate(shown.tolist())]
    rows += [["..."] * (2 + len(classes))] * (clients < counts.shape[0])
    rows.append(["total", sizes.sum(), *totals[classes].tolist()])
    header = ["client", "size", *(class_names[label] for label in classes), *rest]
    table = text_table(header, [[str(cell or ".") for cell in row] + rest for row in rows], left=0)
    return f"{table}\n\n{summary_table(counts)}" if shown.shape != counts.shape else table


def summary_table(counts: Counts) -> str:
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
    return text_table([f"{counts.shape[0]:,} clients", "least", "25%", "median", "75%", "most"], rows)


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
            output: A folder for ``partition.csv`` (up to a million clients times classes) and ``partition.png``.

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
        files = [f"{output}/partition.csv"] * has_table(shown[0]) + [f"{output}/partition.png"]
        print(f"written: {', '.join(files)}")
