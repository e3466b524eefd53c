"""How the clients' accuracies are spread, method by method: FedTrans' Fig. 6 and "IQR".

Reads ``clients.csv`` of runs, searches and fine-tunings (``lit_fednas.records.run``). A client counts once,
whatever the number of its examples.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.analysis.fairness import Groups, read_groups
from lit_fednas.analysis.style import GREY, label, look, new_figure

_LONG = 36  # characters of all names together that fit beside each other


def accuracy_spread(groups: Groups) -> pd.DataFrame:
    """Mean, interquartile range (linear interpolation) and worst of the clients' accuracies.

    Each is found for every run by itself and averaged over the runs.

    Args:
        groups: Folders with ``clients.csv``, of runs that differ in their seeds, by the method's name.

    Returns:
        ``name``, ``runs``, ``clients`` (mean over runs), ``mean``, ``iqr``, ``worst``; accuracies from 0 to 1.

    Raises:
        DataError: A name has no folder, or a file is missing or broken.
    """
    rows = []
    for name, tables in read_groups(groups).items():
        runs = [table["accuracy"] for table in tables]
        each = (
            [len(run) for run in runs],
            [run.mean() for run in runs],
            [run.quantile(0.75) - run.quantile(0.25) for run in runs],
            [run.min() for run in runs],
        )
        rows.append((name, len(runs), *(np.mean(figures) for figures in each)))
    return pd.DataFrame(rows, columns=["name", "runs", "clients", "mean", "iqr", "worst"])


def client_boxes(groups: Groups) -> Figure:
    """FedTrans' Fig. 6: a box of the clients' accuracies per method.

    A box goes from the lower to the upper quartile, its line is the median, the white diamond the mean. Whiskers
    end at the furthest clients within 1.5 interquartile ranges of the box; clients beyond are dots. (The paper
    does not say where its whiskers end.) The clients of all runs of a method make one box.

    Args:
        groups: As in :func:`accuracy_spread`.

    Raises:
        DataError: As in :func:`accuracy_spread`.
    """
    found = {
        name: 100 * pd.concat([table["accuracy"] for table in tables])
        for name, tables in read_groups(groups).items()
    }
    figure = new_figure()
    axes = figure.axes[0]
    for place, accuracies in enumerate(found.values()):
        color = look(place)["color"]
        lines = {"color": color, "linewidth": 1.1}
        axes.boxplot(
            accuracies.to_numpy(),
            positions=[place],
            widths=0.55,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": color, "alpha": 0.35, "edgecolor": color},
            medianprops={**lines, "linewidth": 1.8},
            whiskerprops=lines,
            capprops=lines,
            meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": color},
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": GREY, "markeredgecolor": GREY},
        )
    tilted = sum(map(len, found)) > _LONG
    axes.set_xticks(
        range(len(found)),
        list(found),
        rotation=25 if tilted else 0,
        ha="right" if tilted else "center",
    )
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.grid(visible=False, axis="x")
    label(axes, "", "accuracy of clients (%)")
    return figure
