"""What is left of every layer, by method (FedNAS, Fig. 5), and how alike two pruned networks are.

The paper calls two networks "similar" by their picture; here it is a number, the mean over the layers of how far
the kept shares of their filters are apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import number_within, percent, sequence_of
from lit_fednas.analysis.style import GREY, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import text_table


def layer_names(units: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The groups of units that may be pruned, in their order, and their names: their unit's if it has one group.

    Example:
        >>> layer_names({"conv1": ["conv1.out"], "block": ["block.in", "block.out"]})
        {'conv1.out': 'conv1', 'block.in': 'block.in', 'block.out': 'block.out'}
    """
    return {group: unit if len(groups) == 1 else group for unit, groups in units.items() for group in groups}


def kept_units(run: Run) -> pd.DataFrame:
    """How many units every layer of every model has.

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
    """Width multiplier (MobileNet; FedNAS, section 5.1): a ratio of every layer's units, rounded up.

    Example:
        >>> multiplied(pd.Series({"conv1": 8, "conv2": 15}), 0.25).tolist()
        [2, 4]
    """
    return initial.map(lambda size: math.ceil(round(ratio * size, 9)))


def difference(one: pd.Series, other: pd.Series) -> float:
    """Mean absolute difference of the layers' kept shares: 0 for equal networks, at most 1.

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
    """How alike the methods' networks are: the mean :func:`difference` over all pairs of their runs.

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
        found = [difference(a, b) for (i, a), (j, b) in pairs if one != other or i < j]
        table.loc[one, other] = float(np.mean(found)) if found else np.nan
    return table


def differences_markdown(table: pd.DataFrame) -> str:
    """:func:`architecture_differences` as Markdown."""
    body = [[str(name), *("–" if math.isnan(x) else f"{x:.3f}" for x in row)] for name, row in table.iterrows()]
    return text_table(["mean difference of kept shares", *map(str, table.columns)], body, markdown=True)


def architectures_figure(methods: Methods, share: float, multiplier: float | None = None) -> Figure:
    """FedNAS' Fig. 5: the units of every layer, a line per method; grey, those of the initial network.

    Args:
        methods: As in :func:`architecture_differences`; of each method the first run that has got so far is drawn.
        share: Of the initial resource.
        multiplier: Ratio of a width multiplier.

    Raises:
        DataError: No run has got so far, layers differ, or a run has no ``sequence.json``.
    """
    found = {name: next(iter(_reached(runs, share)), None) for name, runs in methods.items()}
    lines = {name: kept[number] for name, (kept, number) in ((n, one) for n, one in found.items() if one)}
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
    """What a width multiplier is called.

    Example:
        >>> multiplier_name(0.7)
        'multiplier 0.7'
    """
    return f"multiplier {ratio:g}"


def _reached(runs: Sequence[Run], share: float) -> list[tuple[pd.DataFrame, int]]:
    """Of the runs that got so far: what is left of the layers, and the first model within a share."""
    found = ((run, number_within(sequence_of(run), share)) for run in runs)
    return [(kept_units(run), number) for run, number in found if number is not None]
