"""Figures of runs: metrics over the rounds, accuracy against cost, what was spent, and the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import PALETTE, label, legend, look, new_figure
from lit_fednas.analysis.tables import (
    client_table,
    independent_costs,
    interval,
    run_subnets,
    subnet_rounds,
    total_costs,
)
from lit_fednas.formatting import axis


def rounds_figure(runs: Sequence[Run], metric: str = "accuracy") -> Figure:
    """A validation metric of every subnet over the rounds: mean over runs, with its 95 % interval from two on.

    Args:
        runs: Runs that differ in their seeds.
        metric: ``accuracy`` or ``loss``.
    """
    figure = new_figure()
    axes = figure.axes[0]
    table = interval(subnet_rounds(runs, metric), ["subnet", "round"], metric)
    for place, (name, lines) in enumerate(table.groupby("subnet", sort=False)):
        _line(axes, lines["round"], lines, place, str(name))
    label(axes, "round", f"validation {metric}")
    if metric == "accuracy":
        _only_shares(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure)
    return figure


def subnets_figure(groups: Mapping[str, Sequence[Run]], split: str = "val") -> Figure:
    """Accuracy of the evaluated subnets against their MACs: mean over each group's runs, with 95 % interval.

    Args:
        groups: Runs that differ in their seeds, by name.
        split: ``val`` or ``test``.
    """
    figure = new_figure()
    axes = figure.axes[0]
    rows = run_subnets(groups, split)
    scale, text = axis("macs", float(rows["macs"].max()) if len(rows) else 1.0)
    table = interval(rows, ["group", "macs"], "accuracy") if len(rows) else rows
    for place, (name, lines) in enumerate(table.groupby("group", sort=False)):
        lines = lines.sort_values("macs")
        _line(axes, lines["macs"] / scale, lines, place, str(name), marked=True)
    label(axes, text, "validation accuracy" if split == "val" else "test accuracy")
    _only_shares(axes)
    legend(figure)
    return figure


def costs_figure(run: Run) -> Figure:
    """MACs and bytes spent over the rounds; dashed, what training the evaluated subnets one by one would take."""
    figure = new_figure(2)
    spent = total_costs(run)
    alone = independent_costs(run.ledger).iloc[-1] if run.ledger else None
    for axes, name in zip(figure.axes, ("macs", "bytes"), strict=True):
        column = f"total_{name}"
        most = max([float(spent[column].max()), *([float(alone[name])] if alone is not None else [])])
        scale, text = axis(column, most)
        axes.plot(spent["round"], spent[column] / scale, color=PALETTE[0], label="this run")
        if alone is not None and len(spent):
            ends = [spent["round"].iloc[-1]], [alone[name] / scale]
            axes.plot(*ends, "D", color=PALETTE[1], markersize=6, label="subnets one by one", clip_on=False)
        label(axes, "round", text)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure)
    return figure


def clients_figure(run: Run) -> Figure:
    """Distribution of each client's loss during local training, over the rounds it took part in.

    Up to 40 clients have a box each; of more, one box shows the distribution of their means.
    """
    figure = new_figure()
    axes = figure.axes[0]
    losses = {str(client): rows["loss"].dropna() for client, rows in run.clients.groupby("client")}
    if len(losses) > 40:
        losses = {f"means of {len(losses)}": client_table(run)["loss"].dropna()}
    boxes = axes.boxplot(
        list(losses.values()),
        patch_artist=True,
        medianprops={"color": "black"},
        flierprops={"markersize": 3},
    )
    for box in boxes["boxes"]:
        box.set(facecolor=PALETTE[5], linewidth=0.8)
    shown = range(0, len(losses), 1 + len(losses) // 12)
    axes.set_xticks([1 + place for place in shown], [list(losses)[place] for place in shown])
    label(axes, "client", "loss in local training")
    return figure


def _line(axes: Axes, x: pd.Series, table: pd.DataFrame, place: int, name: str, marked: bool = False) -> None:
    """A mean, and its interval where there is one."""
    style = look(place) if marked else {**look(place), "marker": ""}
    axes.plot(x, table["mean"], **style, markersize=4, label=name)
    if table["low"].notna().any():
        axes.fill_between(x, table["low"], table["high"], color=style["color"], alpha=0.18, linewidth=0)


def _only_shares(axes: Axes) -> None:
    """Cuts the y axis to 0..1: the intervals of few runs go beyond what an accuracy can be."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))
