"""How alike the clients fare: each one's accuracy on its own test split, with the network that it would use.

A search, a fine-tuning, or a run with ``deployed_accuracy`` writes it as ``clients.csv`` (``records.run``). Here
it becomes FedorAS' Table 7 and Fig. 4 (section 4.4), and FedTrans' Fig. 6 and "IQR": several methods, each with
runs of several seeds. A client counts once, whatever the number of its examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.analysis.style import GREY, draw_line, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import text_table
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.run import CLIENT_SCORE_COLUMNS, CLIENTS_FILE

Groups = Mapping[str, Sequence[Path | str]]
_LONG = 36  # characters of all names together that fit beside each other


def read_client_scores(folder: Path | str) -> pd.DataFrame:
    """Reads the ``clients.csv`` of a search, a fine-tuning or a run.

    Returns:
        ``client``, ``tier`` (a categorical, ordered as the settings beside it list the tiers, else by name),
        ``num_examples``, ``accuracy`` (0 to 1), ``loss``.

    Raises:
        DataError: It is missing, lacks a column, has no or duplicated clients, or a cell is not a number.
    """
    path = Path(folder) / CLIENTS_FILE
    if not path.is_file():
        raise DataError(f"{path}: is missing; clients need test data of their own, set data.client_test")
    try:
        table = pd.read_csv(path, dtype={"tier": str}, keep_default_na=False, na_values={"loss": ["", "nan"]})
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise DataError(f"{path}: is not a valid table ({error}); write it again") from None
    missing = [name for name in CLIENT_SCORE_COLUMNS if name not in table]
    if missing or table.empty:
        fault = f"has no column {missing[0]!r}" if missing else "holds no client"
        raise DataError(f"{path}: {fault}; it needs {', '.join(CLIENT_SCORE_COLUMNS)} and a row per client")
    for name in ("client", "num_examples", "accuracy", "loss"):
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise DataError(f"{path}: {name} has a cell that is not a number; write it again")
    if table["client"].duplicated().any():
        duplicate = table["client"][table["client"].duplicated()].iloc[0]
        raise DataError(f"{path}: client {duplicate} is duplicated; give one row per client")
    table["tier"] = pd.Categorical(table["tier"], _tiers(path.parent, table["tier"]), ordered=True)
    return table[list(CLIENT_SCORE_COLUMNS)]


def fairness_table(groups: Groups) -> pd.DataFrame:
    """Returns FedorAS' Table 7: what the clients of each tier reach, and how much they differ.

    Mean, deviation and worst client are found for each run by itself and averaged over the runs. The deviation is
    that of all clients (divided by their number), as they are no sample of others.

    Args:
        groups: Folders with ``clients.csv``, of runs that differ in their seeds, by name.

    Returns:
        ``name``, ``tier`` (``*`` first), ``runs``, ``clients`` (mean over runs), ``mean``, ``deviation``,
        ``worst``; a tier without clients in some run is averaged over the others.

    Raises:
        DataError: A name has no folder, or a file is missing or broken.
    """
    rows = []
    for name, tables in read_groups(groups).items():
        parts = {ALL_TIERS: [table["accuracy"] for table in tables]}
        for tier in dict.fromkeys(tier for table in tables for tier in table["tier"].cat.categories):
            every = [table["accuracy"][table["tier"] == tier] for table in tables]
            parts[tier] = [run for run in every if len(run)]
        for tier, runs in parts.items():
            figures = [(len(run), run.mean(), run.std(ddof=0), run.min()) for run in runs]
            rows.append((name, tier, len(runs), *np.mean(figures, axis=0)))
    return pd.DataFrame(rows, columns=["name", "tier", "runs", "clients", "mean", "deviation", "worst"])


def fairness_text(table: pd.DataFrame) -> str:
    """Writes a :func:`fairness_table` as Table 7 shows it: one row per name, accuracies in percent.

    Example:
        >>> print(fairness_text(pd.DataFrame({"name": ["a"] * 2, "tier": ["*", "t"], "runs": 1, "clients": 2.0,
        ...     "mean": 0.5, "deviation": 0.1, "worst": 0.4})))
        name  runs  clients      all tiers              t  worst
        a        1        2  50.00 ± 10.00  50.00 ± 10.00  40.00
    """
    tiers = [tier for tier in table["tier"].unique() if tier != ALL_TIERS]
    rows = []
    for name, lines in table.groupby("name", sort=False):
        by_tier = {row.tier: row for row in lines.itertuples()}
        every = by_tier[ALL_TIERS]
        cells = [
            f"{100 * row.mean:.2f} ± {100 * row.deviation:.2f}" if row else "–"
            for row in map(by_tier.get, (ALL_TIERS, *tiers))
        ]
        rows.append([str(name), f"{every.runs}", f"{every.clients:g}", *cells, f"{100 * every.worst:.2f}"])
    return text_table(["name", "runs", "clients", "all tiers", *tiers, "worst"], rows)


def ordered_scores(groups: Groups) -> pd.DataFrame:
    """Returns accuracies of the clients in ascending order, for Fig. 4.

    As a run's seed also partitions the data, every run's clients are ordered by themselves, and those of the same
    rank are averaged.

    Args:
        groups: Folders with ``clients.csv``, of runs that differ in their seeds, by name.

    Returns:
        ``name``, ``place`` (from 1), ``mean``, ``deviation`` (over runs, of a sample; NaN for one run).

    Raises:
        DataError: No folder, a file that is missing or broken, or runs have different numbers of clients.
    """
    parts = []
    for name, tables in read_groups(groups).items():
        if len({len(table) for table in tables}) > 1:
            raise DataError(f"{name}: its runs have different numbers of clients; compare those of as many")
        scores = pd.DataFrame([np.sort(table["accuracy"]) for table in tables])
        places = {"name": name, "place": scores.columns + 1}
        parts.append(pd.DataFrame({**places, "mean": scores.mean(), "deviation": scores.std()}))
    columns = ["name", "place", "mean", "deviation"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def fairness_figure(groups: Groups) -> Figure:
    """Draws FedorAS' Fig. 4: clients by ascending accuracy, a line per name; the band is the deviation over runs.

    Args:
        groups: As in :func:`ordered_scores`.

    Raises:
        DataError: As in :func:`ordered_scores`.
    """
    figure = new_figure()
    axes = figure.axes[0]
    for place, (name, lines) in enumerate(ordered_scores(groups).groupby("name", sort=False)):
        low, high = (100 * (lines["mean"] + sign * lines["deviation"]).clip(0, 1) for sign in (-1, 1))
        draw_line(axes, lines["place"], 100 * lines["mean"], (low, high), place, str(name))
    label(axes, "clients by accuracy", "test accuracy (%)")
    legend(figure)
    return figure


def read_groups(groups: Groups) -> dict[str, list[pd.DataFrame]]:
    """Reads the clients of all runs, as :func:`read_client_scores` does, by name.

    Raises:
        DataError: A name has no folder, or a file is missing or broken.
    """
    empty = [name for name, folders in groups.items() if not folders]
    if empty:
        raise DataError(f"{empty[0]}: has no folder; give at least one with {CLIENTS_FILE}")
    return {name: [read_client_scores(folder) for folder in folders] for name, folders in groups.items()}


def _tiers(folder: Path, seen: pd.Series) -> list[str]:
    """Tiers in the order of ``settings.json``; others after them, by name and number."""
    path = folder / "settings.json"
    settings: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    given = [tier["name"] for tier in settings.get("tiers") or []]
    names = set(seen)
    others = sorted(names - set(given), key=lambda name: [part.zfill(9) for part in re.split(r"(\d+)", name)])
    return [name for name in given if name in names] + others


def accuracy_spread(groups: Groups) -> pd.DataFrame:
    """Returns mean, interquartile range (linear interpolation) and worst of the clients' accuracies.

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
        iqr = [run.quantile(0.75) - run.quantile(0.25) for run in runs]
        figures = [(len(run), run.mean(), one, run.min()) for run, one in zip(runs, iqr, strict=True)]
        rows.append((name, len(runs), *np.mean(figures, axis=0)))
    return pd.DataFrame(rows, columns=["name", "runs", "clients", "mean", "iqr", "worst"])


def client_boxes(groups: Groups) -> Figure:
    """Draws FedTrans' Fig. 6: a box of the clients' accuracies per method.

    A box goes from the lower to the upper quartile, its line is the median, the white diamond the mean. Whiskers
    end at the furthest clients within 1.5 interquartile ranges of the box; clients beyond are dots. (The paper
    does not say where its whiskers end.) The clients of all runs of a method make one box.

    Args:
        groups: As in :func:`accuracy_spread`.

    Raises:
        DataError: As in :func:`accuracy_spread`.
    """
    accuracies_by_name = {
        name: 100 * pd.concat([table["accuracy"] for table in tables])
        for name, tables in read_groups(groups).items()
    }
    figure = new_figure()
    axes = figure.axes[0]
    for place, accuracies in enumerate(accuracies_by_name.values()):
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
    tilted = sum(map(len, accuracies_by_name)) > _LONG
    axes.set_xticks(
        range(len(accuracies_by_name)),
        list(accuracies_by_name),
        rotation=25 if tilted else 0,
        ha="right" if tilted else "center",
    )
    axes.set_xlim(-0.6, len(accuracies_by_name) - 0.4)
    axes.grid(visible=False, axis="x")
    label(axes, "", "accuracy of clients (%)")
    return figure
