"""How a network was pruned step by step: the models, what they cost, and their candidates (FedNAS, section 4).

Read from ``sequence.json`` (``lit_fednas.records.models``). Costs are those of the short-term fine-tuning,
without those of the initial model's training (section 5.3), on the average over all clients of the population: the
paper's "avg uplink cost per client" does not say over which clients, and a cost that falls with the number of
groups (Table 4) is one over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, PALETTE, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import fixed, percent, text_table
from lit_fednas.records import SEQUENCE_FILE, read_sequence

MEGABYTE = 1e6
_KEPT = ["number", "round", "unit", "budget", "resource", "macs", "parameters", "bytes", "accuracy", "rounds"]
_EQUAL = 1e-9  # of shares, which are quotients


def sequence_of(run: Run) -> dict[str, Any]:
    """Returns the sequence as ``sequence.json`` has it.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    sequence = read_sequence(run.folder)
    if sequence is None:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: is missing; only runs with lit_fednas.callbacks.PruneByBudgets write it"
        )
    return sequence


def sequence_table(run: Run) -> pd.DataFrame:
    """Returns the models of a run, a row each.

    Args:
        run: The run.

    Returns:
        ``number``, ``round`` (after which it was selected), ``unit`` (that lost filters), ``budget`` (without
        a value, or empty, for the initial one), ``resource``, ``share`` (of the initial resource), ``macs``,
        ``parameters``, ``bytes``, ``accuracy`` (from 0 to 1, on the clients' validation data; NaN where nobody
        tested), ``rounds``, ``candidates`` (how many), and what a client has spent on the average since the first
        iteration began: ``client_macs`` (of forward passes), ``up_mb``, ``down_mb`` (10^6 bytes).

    Raises:
        DataError: The run has no ``sequence.json``, or it is broken.
    """
    sequence = sequence_of(run)
    models = pd.DataFrame(sequence["models"])
    spent = client_costs(sequence)
    spent.iloc[0] = 0.0
    spent = spent.cumsum()
    table = models[_KEPT].assign(
        unit=models["unit"].fillna(""),
        share=models["resource"] / sequence["initial"],
        candidates=models["candidates"].map(len),
        client_macs=spent["macs"],
        up_mb=spent["bytes_up"] / MEGABYTE,
        down_mb=spent["bytes_down"] / MEGABYTE,
    )
    return table.astype({"round": "Int64", "budget": float, "accuracy": float})


def client_costs(sequence: Mapping[str, Any]) -> pd.DataFrame:
    """Returns what a client spent on average in each iteration, a row each; the first row is the initial model's.

    Example:
        >>> costs = {"macs": 600, "bytes_up": 30, "bytes_down": 90}
        >>> client_costs({"models": [{"costs": costs}], "clients": 3}).to_dict("records")
        [{'macs': 200.0, 'bytes_up': 10.0, 'bytes_down': 30.0}]
    """
    return pd.DataFrame([model["costs"] for model in sequence["models"]]) / sequence["clients"]


def model_within(run: Run, share: float) -> pd.Series | None:
    """Returns the first row of the :func:`sequence_table` within a share of the initial resource, or none."""
    table = sequence_table(run)
    fitting = table[table["share"] <= share + _EQUAL]
    return None if fitting.empty else fitting.iloc[0]


def candidates_figure(run: Run, iterations: Sequence[int] | None = None) -> Figure:
    """Returns FedNAS' Fig. 3: how accurate an iteration's candidates were, round by round.

    The winner's line is red and dashed; another ends in a cross where it was dropped.

    Args:
        run: The run.
        iterations: Numbers of models, a panel each; by default the first and the last.

    Raises:
        DataError: The run has no ``sequence.json``, or no such iteration.
    """
    models = {model["number"]: model for model in sequence_of(run)["models"] if model["candidates"]}
    if not models:
        raise DataError(f"{run.folder / SEQUENCE_FILE}: no iteration has ended; train on")
    chosen = list(dict.fromkeys((min(models), max(models)))) if iterations is None else list(iterations)
    unknown = [number for number in chosen if number not in models]
    if unknown:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: has no iteration {unknown[0]}; choose from {min(models)} to {max(models)}"
        )
    shares = sequence_table(run).set_index("number")["share"]
    figure = new_figure(len(chosen), in_row=3)
    for axes, number in zip(figure.axes, chosen, strict=True):
        _draw_candidates(axes, models[number])
        axes.set_title(f"iteration {number}, {percent(shares[number])}", fontsize=9)
        label(axes, "round of the iteration", "accuracy on clients' validation data")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.legend(fontsize=8, frameon=False)
    return figure


def _draw_candidates(axes: Axes, model: Mapping[str, Any]) -> None:
    for one in sorted(model["candidates"], key=lambda one: bool(one["unit"] == model["unit"])):
        accuracies = np.array(one["accuracies"], dtype=float)
        style: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "markersize": 4, "markevery": [-1]}
        style["marker"] = "." if one["dropped"] is None else "x"
        if one["unit"] == model["unit"]:
            style = {"color": PALETTE[1], "linewidth": 2.0, "linestyle": "--", "marker": "o", "markersize": 3}
            style["label"] = f"{one['unit']} (selected)"
        if len(accuracies):
            axes.plot(1 + np.arange(len(accuracies)), accuracies, **style)


def kept_units(run: Run) -> pd.DataFrame:
    """Returns how many units every layer of every model has.

    Args:
        run: The run.

    Returns:
        A row per layer (a prunable group of units), in the order of the network, a column per model (its number).
        A layer has its unit's name if that has one group.

    Raises:
        DataError: The run has no ``sequence.json``.
    """
    sequence = sequence_of(run)
    names = {
        group: unit if len(groups) == 1 else group for unit, groups in sequence["units"].items() for group in groups
    }
    sizes = pd.DataFrame({model["number"]: model["sizes"] for model in sequence["models"]})
    return sizes.loc[list(names)].rename(index=names)


def multiplied(initial: pd.Series, ratio: float) -> pd.Series:
    """Applies a width multiplier (MobileNet; FedNAS, section 5.1): a ratio of every layer's units, rounded up."""
    return initial.map(lambda size: math.ceil(round(ratio * size, 9)))


def difference(one: pd.Series, other: pd.Series) -> float:
    """Returns the mean absolute difference of the layers' kept shares: 0 for equal networks, at most 1.

    Args:
        one: Kept shares by layer, from 0 to 1.
        other: Of another network with the same layers.

    Raises:
        DataError: The layers are others.

    Example:
        >>> difference(pd.Series({"conv1": 1.0, "conv2": 0.5}), pd.Series({"conv1": 0.75, "conv2": 0.75}))
        0.25
    """
    if list(one.index) != list(other.index):
        raise DataError(
            f"the networks have other layers ({', '.join(one.index)}; {', '.join(other.index)}); compare runs of "
            f"one network"
        )
    return float((one - other).abs().mean())


def architecture_differences(methods: Methods, share: float, multiplier: float | None = None) -> pd.DataFrame:
    """Returns how much the methods' networks differ: the mean :func:`difference` over all pairs of runs.

    Args:
        methods: Runs that differ in their seeds, by method; each with a sequence.
        share: Of the initial resource: a run's network is its first within it.
        multiplier: Ratio of a width multiplier, which is then a method as well.

    Returns:
        A row and a column per method. In the diagonal are pairs of runs of one method: what a seed makes of it;
        NaN with one run. NaN, too, where no run of a method has got that far.

    Raises:
        DataError: Layers differ, or a run has no ``sequence.json``.
    """
    shares = {name: [kept / initial for initial, kept in _reached(runs, share)] for name, runs in methods.items()}
    if multiplier is not None:
        initial = _initial(methods)
        shares[f"multiplier {multiplier:g}"] = [multiplied(initial, multiplier) / initial]
    table = pd.DataFrame(np.nan, index=list(shares), columns=list(shares))
    for one, other in product(shares, shares):
        pairs = product(enumerate(shares[one]), enumerate(shares[other]))
        differences = [difference(a, b) for (i, a), (j, b) in pairs if one != other or i < j]
        table.loc[one, other] = float(np.mean(differences)) if differences else np.nan
    return table


def differences_markdown(table: pd.DataFrame) -> str:
    """Writes :func:`architecture_differences` in Markdown."""
    body = [[str(name), *(fixed(number, 3) for number in row)] for name, row in table.iterrows()]
    return text_table(["mean difference of kept shares", *map(str, table.columns)], body, markdown=True)


def architectures_figure(methods: Methods, share: float, multiplier: float | None = None) -> Figure:
    """Returns FedNAS' Fig. 5: the units of every layer, a line per method; grey, those of the initial network.

    Args:
        methods: As in :func:`architecture_differences`; of each method the first run that has got so far is drawn.
        share: Of the initial resource.
        multiplier: Ratio of a width multiplier.

    Raises:
        DataError: No run has got so far, layers differ, or a run has no ``sequence.json``.
    """
    networks = {name: _reached(runs, share) for name, runs in methods.items()}
    lines = {name: reached[0][1] for name, reached in networks.items() if reached}
    if not lines:
        raise DataError(f"{', '.join(methods)}: no run has got to {percent(share)}; choose a greater share")
    initial = _initial(methods)
    for line in lines.values():
        difference(line, initial)  # of the same layers
    if multiplier is not None:
        lines[f"multiplier {multiplier:g}"] = multiplied(initial, multiplier)
    figure = new_figure()
    figure.set_size_inches(max(3.6, 1.0 + 0.36 * len(initial)), 3.2)
    axes = figure.axes[0]
    layers = range(len(initial))
    grey: dict[str, Any] = {"color": GREY, "linewidth": 3, "alpha": 0.6}
    axes.plot(layers, initial, **grey, label="initial")
    for index, (name, line) in enumerate(lines.items()):
        axes.plot(layers, line, **look(index), linewidth=1.3, markersize=4, label=name)
    axes.set_xticks(layers, list(initial.index), rotation=90 if len(initial) > 6 else 0)
    axes.set_ylim(bottom=0)
    axes.set_title(f"at most {percent(share)} of the initial resource", fontsize=9)
    label(axes, "", "filters")
    legend(figure)
    return figure


def _initial(methods: Methods) -> pd.Series:
    """Returns the layers' units in the initial network."""
    return kept_units(next(run for runs in methods.values() for run in runs))[0]


def _reached(runs: Sequence[Run], share: float) -> list[tuple[pd.Series, pd.Series]]:
    """Returns the layers' units in the initial network and in the first within a share, if a run has one."""
    models = ((kept_units(run), model_within(run, share)) for run in runs)
    return [(kept[0], kept[model["number"]]) for kept, model in models if model is not None]
