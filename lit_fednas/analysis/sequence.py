"""How a network was pruned step by step: the models, what they cost, and their candidates (FedNAS, section 4).

Read from ``sequence.json`` (``lit_fednas.records.models``). Costs are those of the short-term fine-tuning,
without those of the initial model's training (section 5.3), on the average over all clients of the population: the
paper's "avg uplink cost per client" does not say over which clients, and a cost that falls with the number of
groups (Table 4) is one over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, PALETTE, label, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, text_table
from lit_fednas.records import SEQUENCE_FILE, read_sequence

MEGABYTE = 1e6
_COSTS = ("macs", "bytes_up", "bytes_down")
_KEPT = ("number", "round", "unit", "budget", "resource", "macs", "parameters", "bytes", "accuracy", "rounds")
_EQUAL = 1e-9  # of shares, which are quotients


def sequence_of(run: Run) -> dict[str, Any]:
    """The sequence as ``sequence.json`` has it.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    found = read_sequence(run.folder)
    if found is None:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: is not there; only runs with "
            f"lit_fednas.callbacks.PruneByBudgets write it"
        )
    return found


def sequence_table(run: Run) -> pd.DataFrame:
    """The models of a run, a row each.

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
    """What a model, or a candidate, takes of the initial resource, from 0 to 1."""
    return float(model["resource"]) / float(sequence["initial"])


def client_costs(entry: Mapping[str, Any], clients: int) -> dict[str, float]:
    """What a client spent on the average in an iteration.

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
    """The first model that takes at most a share of the initial resource; ``None`` if the run has not got there.

    Args:
        sequence: The record.
        share: From 0 to 1.
    """
    fitting = (one["number"] for one in sequence["models"] if share_of(sequence, one) <= share + _EQUAL)
    return next(fitting, None)


def sequence_text(table: pd.DataFrame) -> str:
    """A :func:`sequence_table` as aligned text.

    Example:
        >>> row = {"number": 1, "round": 4, "unit": "conv2", "budget": 800.0, "resource": 790, "share": 0.79,
        ...     "macs": 790, "parameters": 34, "bytes": 136, "accuracy": 0.914, "rounds": 5, "candidates": 3,
        ...     "client_macs": 9e9, "up_mb": 1.25, "down_mb": 2.5}
        >>> print(sequence_text(pd.DataFrame([row])))  # doctest: +ELLIPSIS
        model  unit   round  budget  resource  share  MACs  parameters  bytes  accuracy  rounds  candidates  ...
        1      conv2      4     800       790    79%   790          34  136 B    0.9140       5           3  ...
    """
    head = ["model", "unit", "round", "budget", "resource", "share", "MACs", "parameters", "bytes", "accuracy"]
    head += ["rounds", "candidates", "MACs/client", "MB up", "MB down"]
    return text_table(head, [cells(row) for row in table.itertuples()], left=2)


def cells(row: Any) -> list[str]:
    """A row of a :func:`sequence_table` as texts, in the columns of :func:`sequence_text`."""
    first = row.number == 0
    return [
        *(str(row.number), row.unit or "–", "–" if pd.isna(row.round) else str(row.round)),
        *(short(row.budget), short(row.resource), percent(row.share)),
        *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
        *("–" if math.isnan(row.accuracy) else f"{row.accuracy:.4f}", str(row.rounds), str(row.candidates)),
        *("–" if first else short(row.client_macs), "–" if first else f"{row.up_mb:.4g}"),
        "–" if first else f"{row.down_mb:.4g}",
    ]


def percent(share: float) -> str:
    """A share in percent, in at most three digits.

    Example:
        >>> percent(0.5), percent(0.7234), percent(1.0)
        ('50%', '72.3%', '100%')
    """
    return f"{100 * share:.3g}%"


def candidates_figure(run: Run, iterations: Sequence[int] | None = None) -> Figure:
    """FedNAS' Fig. 3: how accurate an iteration's candidates were, round by round.

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
