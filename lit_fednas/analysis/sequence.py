"""How a network was pruned step by step: the models, what they cost, and their candidates (FedNAS, section 4).

Read from ``sequence.json`` (``lit_fednas.records.models``). Costs are those of the short-term fine-tuning,
without those of the initial model's training (section 5.3), on the average over all clients of the population: the
paper's "avg uplink cost per client" does not say over which clients, and a cost that falls with the number of
groups (Table 4) is one over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from lit_fednas.formatting import fixed, percent, short, text_table
from lit_fednas.records import SEQUENCE_FILE, read_sequence

MEGABYTE = 1e6
#: Of a :func:`sequence_table` as text.
COLUMNS = (
    *("model", "unit", "round", "budget", "resource", "share", "MACs", "parameters", "bytes", "accuracy"),
    *("rounds", "candidates", "MACs/client", "MB up", "MB down"),
)
_COSTS = ("macs", "bytes_up", "bytes_down")
_KEPT = ("number", "round", "unit", "budget", "resource", "macs", "parameters", "bytes", "accuracy", "rounds")
_EQUAL = 1e-9  # of shares, which are quotients


def sequence_of(run: Run) -> dict[str, Any]:
    """Returns the sequence as ``sequence.json`` has it.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    sequence = read_sequence(run.folder)
    if sequence is None:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: is missing; only runs with "
            f"lit_fednas.callbacks.PruneByBudgets write it"
        )
    return sequence


def sequence_table(run: Run) -> pd.DataFrame:
    """Returns the models of a run, a row each.

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
    spent = dict.fromkeys(_COSTS, 0.0)
    rows = []
    for model in sequence["models"]:
        own = client_costs(model, sequence["clients"]) if model["number"] else dict.fromkeys(_COSTS, 0.0)
        spent = {name: spent[name] + own[name] for name in _COSTS}
        rows.append(
            {
                **{name: model[name] for name in _KEPT},
                "unit": model["unit"] or "",
                "share": share_of(sequence, model),
                "candidates": len(model["candidates"]),
                "client_macs": spent["macs"],
                "up_mb": spent["bytes_up"] / MEGABYTE,
                "down_mb": spent["bytes_down"] / MEGABYTE,
            }
        )
    columns = ("number", "round", "unit", "budget", "resource", "share", "macs", "parameters", "bytes")
    more = ("accuracy", "rounds", "candidates", "client_macs", "up_mb", "down_mb")
    table = pd.DataFrame(rows, columns=[*columns, *more])
    return table.astype({"round": "Int64", "budget": float, "accuracy": float})


def share_of(sequence: Mapping[str, Any], model: Mapping[str, Any]) -> float:
    """Returns what a model, or a candidate, takes of the initial resource, from 0 to 1."""
    return float(model["resource"]) / float(sequence["initial"])


def client_costs(entry: Mapping[str, Any], clients: int) -> dict[str, float]:
    """Returns what a client spent on average in an iteration.

    Args:
        entry: A model, or the iteration that is under way.
        clients: How many clients there are.

    Returns:
        ``macs``, ``bytes_up``, ``bytes_down``.

    Example:
        >>> client_costs({"costs": {"macs": 600, "bytes_up": 30, "bytes_down": 90}}, 3)
        {'macs': 200.0, 'bytes_up': 10.0, 'bytes_down': 30.0}
    """
    return {name: entry["costs"][name] / clients for name in _COSTS}


def number_within(sequence: Mapping[str, Any], share: float) -> int | None:
    """Returns the first model that takes at most a share of the initial resource; ``None`` if there is none yet.

    Args:
        sequence: The record.
        share: From 0 to 1.
    """
    fitting = (one["number"] for one in sequence["models"] if share_of(sequence, one) <= share + _EQUAL)
    return next(fitting, None)


def cells(row: Any) -> list[str]:
    """Writes a row of a :func:`sequence_table` as texts, in the order of :data:`COLUMNS`."""
    first = row.number == 0
    return [
        *(str(row.number), row.unit or "–", "–" if pd.isna(row.round) else str(row.round)),
        *(short(row.budget), short(row.resource), percent(row.share)),
        *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
        *(fixed(row.accuracy), str(row.rounds), str(row.candidates)),
        *("–" if first else short(row.client_macs), "–" if first else f"{row.up_mb:.4g}"),
        "–" if first else f"{row.down_mb:.4g}",
    ]


def candidates_figure(run: Run, iterations: Sequence[int] | None = None) -> Figure:
    """Draws FedNAS' Fig. 3: how accurate an iteration's candidates were, round by round.

    The winner's line is red and dashed; another ends in a cross where it was dropped.

    Args:
        run: The run.
        iterations: Numbers of models, a panel each; by default the first and the last.

    Raises:
        DataError: The run has no ``sequence.json``, or no such iteration.
    """
    sequence = sequence_of(run)
    models = {model["number"]: model for model in sequence["models"] if model["candidates"]}
    if not models:
        raise DataError(f"{run.folder / SEQUENCE_FILE}: no iteration has ended; train on")
    chosen = list(dict.fromkeys((min(models), max(models)))) if iterations is None else list(iterations)
    unknown = [number for number in chosen if number not in models]
    if unknown:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: has no iteration {unknown[0]}; choose from {min(models)} to "
            f"{max(models)}"
        )
    figure = new_figure(len(chosen), in_row=3)
    for axes, number in zip(figure.axes, chosen, strict=True):
        _draw_candidates(axes, models[number])
        axes.set_title(f"iteration {number}, {percent(share_of(sequence, models[number]))}", fontsize=9)
        label(axes, "round of the iteration", "accuracy on clients' validation data")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.legend(fontsize=8, frameon=False)
    return figure


def _draw_candidates(axes: Axes, model: Mapping[str, Any]) -> None:
    for one in sorted(model["candidates"], key=lambda one: bool(one["unit"] == model["unit"])):
        won = one["unit"] == model["unit"]
        mark = "." if one["dropped"] is None else "x"
        style: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "marker": mark, "markersize": 4}
        if won:
            style = {"color": PALETTE[1], "linewidth": 2.0, "linestyle": "--", "marker": "o", "markersize": 3}
        heights = known(one["accuracies"])
        style["markevery"] = range(len(heights)) if won else [-1] if len(heights) else []
        axes.plot(range(1, len(heights) + 1), heights, **style, label=f"{one['unit']} (selected)" if won else None)


def known(values: Iterable[float | None]) -> list[float]:
    """Numbers with NaN for null.

    Example:
        >>> known([0.5, None])
        [0.5, nan]
    """
    return [math.nan if value is None else float(value) for value in values]


def layer_names(units: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the prunable groups of units and their names: their unit's name if that has one group.

    Example:
        >>> layer_names({"conv1": ["conv1.out"], "block": ["block.in", "block.out"]})
        {'conv1.out': 'conv1', 'block.in': 'block.in', 'block.out': 'block.out'}
    """
    return {group: unit if len(groups) == 1 else group for unit, groups in units.items() for group in groups}


def kept_units(run: Run) -> pd.DataFrame:
    """Returns how many units every layer of every model has.

    Returns:
        A row per layer, in the order of the network, a column per model (its number).

    Raises:
        DataError: The run has no ``sequence.json``.
    """
    sequence = sequence_of(run)
    names = layer_names(sequence["units"])
    models = {model["number"]: [model["sizes"][group] for group in names] for model in sequence["models"]}
    return pd.DataFrame(models, index=list(names.values()))


def multiplied(initial: pd.Series, ratio: float) -> pd.Series:
    """Applies a width multiplier (MobileNet; FedNAS, section 5.1): a ratio of every layer's units, rounded up.

    Example:
        >>> multiplied(pd.Series({"conv1": 8, "conv2": 15}), 0.25).tolist()
        [2, 4]
    """
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
    shares: dict[str, list[pd.Series]] = {
        name: [kept[number] / kept[0] for kept, number in _reached(runs, share)] for name, runs in methods.items()
    }
    if multiplier is not None:
        initial = kept_units(next(run for runs in methods.values() for run in runs))[0]
        shares[multiplier_name(multiplier)] = [multiplied(initial, multiplier) / initial]
    table = pd.DataFrame(np.nan, index=list(shares), columns=list(shares))
    for one, other in product(shares, shares):
        pairs = product(enumerate(shares[one]), enumerate(shares[other]))
        differences = [difference(a, b) for (i, a), (j, b) in pairs if one != other or i < j]
        table.loc[one, other] = float(np.mean(differences)) if differences else np.nan
    return table


def differences_markdown(table: pd.DataFrame) -> str:
    """Writes :func:`architecture_differences` in Markdown."""
    body = [[str(name), *("–" if math.isnan(x) else f"{x:.3f}" for x in row)] for name, row in table.iterrows()]
    return text_table(["mean difference of kept shares", *map(str, table.columns)], body, markdown=True)


def architectures_figure(methods: Methods, share: float, multiplier: float | None = None) -> Figure:
    """Draws FedNAS' Fig. 5: the units of every layer, a line per method; grey, those of the initial network.

    Args:
        methods: As in :func:`architecture_differences`; of each method the first run that has got so far is drawn.
        share: Of the initial resource.
        multiplier: Ratio of a width multiplier.

    Raises:
        DataError: No run has got so far, layers differ, or a run has no ``sequence.json``.
    """
    first_runs = {name: next(iter(_reached(runs, share)), None) for name, runs in methods.items()}
    lines = {name: kept[number] for name, (kept, number) in ((n, one) for n, one in first_runs.items() if one)}
    if not lines:
        raise DataError(f"{', '.join(methods)}: no run has got to {percent(share)}; choose a greater share")
    initial = kept_units(next(run for runs in methods.values() for run in runs))[0]
    for line in lines.values():
        difference(line, initial)  # of the same layers
    if multiplier is not None:
        lines[multiplier_name(multiplier)] = multiplied(initial, multiplier)
    figure = new_figure()
    figure.set_size_inches(max(3.6, 1.0 + 0.36 * len(initial)), 3.2)
    axes = figure.axes[0]
    places = range(len(initial))
    grey: dict[str, Any] = {"color": GREY, "linewidth": 3, "alpha": 0.6}
    axes.plot(places, initial, **grey, label="initial")
    for place, (name, line) in enumerate(lines.items()):
        axes.plot(places, line, **look(place), linewidth=1.3, markersize=4, label=name)
    axes.set_xticks(places, list(initial.index), rotation=90 if len(initial) > 6 else 0)
    axes.set_ylim(bottom=0)
    axes.set_title(f"at most {percent(share)} of the initial resource", fontsize=9)
    label(axes, "", "filters")
    legend(figure)
    return figure


def multiplier_name(ratio: float) -> str:
    """Returns the label of a width multiplier.

    Example:
        >>> multiplier_name(0.7)
        'multiplier 0.7'
    """
    return f"multiplier {ratio:g}"


def _reached(runs: Sequence[Run], share: float) -> list[tuple[pd.DataFrame, int]]:
    """Returns the kept units and the first model within a share, of the runs that have reached it."""
    numbers = ((run, number_within(sequence_of(run), share)) for run in runs)
    return [(kept_units(run), number) for run, number in numbers if number is not None]
