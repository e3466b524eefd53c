"""How a suite of models grew (FedTrans, section 4): its tree, the losses, and who trained which model.

Read from ``suite.json`` (``lit_fednas.records.models``) and the rounds' records, in which a client's architecture
is ``model: 2``. Rounds count from 0; a model of round r was added after that round's server step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, text_table
from lit_fednas.records import SUITE_FILE, read_suite, step_words

#: The column of all clients together in :func:`model_losses`.
ALL_CLIENTS = "all"
_LONGEST = 44  # characters of what was done, in a figure


def read_models(run: Run) -> list[dict[str, Any]]:
    """The models as ``suite.json`` has them.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    found = read_suite(run.folder)
    if found is None:
        raise DataError(
            f"{run.folder / SUITE_FILE}: is not there; only runs with "
            f"lit_fednas.callbacks.TransformOnConvergence write it"
        )
    models: list[dict[str, Any]] = found["models"]
    return models


def suite_table(run: Run) -> pd.DataFrame:
    """The models, with who trained them.

    Returns:
        ``number``, ``parent``, ``round`` (both without a value for the first), ``macs``, ``parameters``,
        ``bytes``, ``clients`` (that have trained it at least once), ``trainings`` (how often they did), ``done``
        (what was done to the parent, in words).

    Raises:
        DataError: The run has no ``suite.json``.
    """
    trained = _trained(run)
    rows = []
    for model in read_models(run):
        own = trained[_mask(trained, [model["number"] in numbers for numbers in trained["numbers"]])]
        kept = {name: model[name] for name in ("number", "parent", "round", "macs", "parameters", "bytes")}
        counts = {"clients": own["client"].nunique(), "trainings": len(own)}
        rows.append({**kept, **counts, "done": step_words(model["steps"])})
    table = pd.DataFrame(rows)
    return table.astype({"parent": "Int64", "round": "Int64"})


def suite_text(table: pd.DataFrame) -> str:
    """A :func:`suite_table` as aligned text.

    Example:
        >>> print(suite_text(pd.DataFrame({"number": [0], "parent": [pd.NA], "round": [pd.NA], "macs": [9000],
        ...     "parameters": [34], "bytes": [136], "clients": [8], "trainings": [20], "done": [""]})))
        model  from  round  MACs  parameters  bytes  clients  trainings  done
        0         –      –   9 k          34  136 B        8         20     –
    """
    head = ["model", "from", "round", "MACs", "parameters", "bytes", "clients", "trainings", "done"]
    body = [
        [
            *(str(row.number), _or_dash(row.parent), _or_dash(row.round)),
            *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
            *(str(row.clients), str(row.trainings), row.done or "–"),
        ]
        for row in table.itertuples()
    ]
    return text_table(head, body)


def model_losses(run: Run, window: int = 1) -> pd.DataFrame:
    """Mean loss in the clients' training, weighted by the examples that went through a client's network.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), and :data:`ALL_CLIENTS`; NaN where untrained.
    """
    trained = _trained(run)
    trained["sum"] = trained["loss"] * trained["num_seen"]
    rounds = pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")
    groups = {name: rows for _, (name, rows) in sorted(_by_model(trained).items())}
    means = {}
    for name, rows in {**groups, ALL_CLIENTS: trained}.items():
        sums = rows.groupby("round")[["sum", "num_seen"]].sum().reindex(rounds, fill_value=0)
        sums = sums.rolling(window, min_periods=1).sum()
        means[name] = sums["sum"] / sums["num_seen"].where(sums["num_seen"] > 0)
    return pd.DataFrame(means, index=rounds)


def model_clients(run: Run, window: int = 1) -> pd.DataFrame:
    """How many clients have trained each model.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), in their order.
    """
    rounds = pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")
    counts = {
        name: rows.groupby("round").size().reindex(rounds, fill_value=0)
        for _, (name, rows) in sorted(_by_model(_trained(run)).items())
    }
    return pd.DataFrame(counts, index=rounds, dtype=float).rolling(window, min_periods=1).mean()


def loss_figure(run: Run, window: int | None = None) -> Figure:
    """Training loss over the rounds: thin, the clients of each model; thick, all; upright, the transformations.

    Args:
        run: The run.
        window: Rounds that are averaged; by default a fiftieth of all.

    Raises:
        DataError: The run has no ``suite.json``.
    """
    models = read_models(run)
    window = max(1, len(run.rounds) // 50) if window is None else window
    losses = model_losses(run, window)
    figure = new_figure()
    axes = figure.axes[0]
    _draw_transformations(axes, models, len(losses))
    axes.plot(losses.index, losses[ALL_CLIENTS], color=GREY, linewidth=4, alpha=0.6, label=ALL_CLIENTS)
    for place, name in enumerate(losses.columns.drop(ALL_CLIENTS)):
        line = losses[name].dropna()
        axes.plot(line.index, line, **_line(name, len(models) + place), linewidth=1.0, label=name)
    label(axes, "round", "training loss" + (f" (mean of {window} rounds)" if window > 1 else ""))
    _finish(figure)
    return figure


def clients_figure(run: Run, window: int | None = None) -> Figure:
    """How many clients train each model over the rounds, stacked in the order of the models.

    Args:
        run: The run.
        window: Rounds that are averaged; by default a twentieth of all.

    Raises:
        DataError: The run has no ``suite.json``.
    """
    models = read_models(run)
    window = max(1, len(run.rounds) // 20) if window is None else window
    counts = model_clients(run, window)
    figure = new_figure()
    axes = figure.axes[0]
    below = pd.Series(0.0, index=counts.index)
    for place, name in enumerate(counts):
        style = _line(name, len(models) + place)
        hatch = None if style["linestyle"] == "-" else "////"  # where the colours begin anew
        filled = {"facecolor": style["color"], "edgecolor": "white", "hatch": hatch, "linewidth": 0.3}
        axes.fill_between(counts.index, below, below + counts[name], **filled, step="mid", label=name)
        below = below + counts[name]
    _draw_transformations(axes, models, len(counts))
    label(axes, "round", "clients" + (f" (mean of {window} rounds)" if window > 1 else ""))
    axes.set_ylim(bottom=0)
    _finish(figure)
    return figure


def tree_figure(run: Run) -> Figure:
    """The suite as a tree: a line per model, in the order in which they were added, across its MACs.

    What was done to the parent stands in the model's line, so that nothing overlaps however long the chain is.

    Raises:
        DataError: The run has no ``suite.json``.
    """
    models = read_models(run)
    places = {model["number"]: (model["macs"], line) for line, model in enumerate(models)}
    figure = new_figure()
    figure.set_size_inches(6.2, 0.8 + 0.42 * len(models))
    axes = figure.axes[0]
    for model in models:
        x, line = places[model["number"]]
        if model["parent"] in places:
            before, above = places[model["parent"]]
            axes.plot([before, before, x], [above, line, line], color=GREY, linewidth=1.2, zorder=1)
        axes.plot(x, line, "o", color=look(model["number"])["color"], markersize=12, zorder=2)
        number: dict[str, Any] = {"color": "white", "fontsize": 7, "fontweight": "bold", "ha": "center"}
        axes.text(x, line, str(model["number"]), **number, va="center_baseline", zorder=3)
        costs = f"{short(model['macs'])} MACs, {short(model['parameters'])} parameters"
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": 7.5}
        axes.text(1.03, line - 0.03, costs, **beside, va="bottom")
        done = shortened(step_words(model["steps"]), _LONGEST) or "initial model"
        axes.text(1.03, line + 0.05, done, **beside, va="top", color="#606060")
    axes.set_yticks(range(len(models)), [when(model) for model in models])
    axes.set_ylim(len(models) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    _across_costs(axes, [model["macs"] for model in models])
    label(axes, "MACs per example", "")
    return figure


def when(model: Mapping[str, Any]) -> str:
    """When a model was added.

    Example:
        >>> when({"round": 12}), when({"round": None})
        ('round 12', 'start')
    """
    return "start" if model["round"] is None else f"round {model['round']}"


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters.

    Example:
        >>> shortened("widen conv1, conv2", 12)
        'widen conv1…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip(" ,;") + "…"


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers for a logarithmic axis: at most so many, and at least one.

    Example:
        >>> round_ticks(400, 40_000), round_ticks(3.1e6, 4.9e6)
        ([1000.0, 3000.0, 10000.0, 30000.0], [4000000.0])
    """
    power = len(str(int(low))) - 1
    tens = [10.0**exponent for exponent in range(power, len(str(int(high))) + 1)]
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        within = [step * ten for ten in tens for step in steps if low <= step * ten <= high]
        if found and (len(within) > most or len(steps) > 3):
            break
        found = within[:: -(-len(within) // most) or 1]
        if len(found) >= 3:
            break
    return found or [low]


def _across_costs(axes: Axes, macs: Sequence[float]) -> None:
    """A logarithmic axis that holds all models, with a margin for their marks."""
    reach = max((max(macs) / min(macs)) ** 0.1, 1.5)
    low, high = min(macs) / reach, max(macs) * reach
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = round_ticks(low, high)
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_transformations(axes: Axes, models: Sequence[Mapping[str, Any]], rounds: int) -> None:
    """An upright line where a model was added, with its number above; numbers that would touch are set higher."""
    ends: list[float] = []  # where the last number of each height ends, in parts of the axis
    for model in models:
        if model["round"] is None:
            continue
        colour = look(model["number"])["color"]
        axes.axvline(model["round"], color=colour, linewidth=0.8, linestyle=(0, (3, 2)))
        place = model["round"] / max(1, rounds - 1)
        height = next((height for height, end in enumerate(ends) if place > end), len(ends))
        text = f"+{model['number']}"
        ends[height : height + 1] = [place + 0.03 * len(text)]
        axes.annotate(
            text,
            (model["round"], 1),
            (0, 2 + 8 * height),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            fontsize=7,
            color=colour,
            ha="center",
        )


def _finish(figure: Figure) -> None:
    """Whole rounds below, and a legend, for which there is room however many models there are."""
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    entries = len(figure.axes[0].get_legend_handles_labels()[0])
    figure.set_size_inches(3.6, 3.0 + 0.16 * max(0, (entries - 7) / 3))
    legend(figure)


def _line(name: str, otherwise: int) -> dict[str, Any]:
    """The look of a model's line, the same in all figures."""
    numbers = _numbers(name)
    return {**look(numbers[0] if len(numbers) == 1 else otherwise), "marker": ""}


def _trained(run: Run) -> pd.DataFrame:
    """The clients' rows that ended with an update of models of the suite, and which these are: ``numbers``."""
    rows = run.clients[run.clients["status"] == "ok"].copy()
    rows["numbers"] = pd.Series([_numbers(str(arch)) for arch in rows["arch"]], index=rows.index, dtype=object)
    return rows[_mask(rows, [len(numbers) > 0 for numbers in rows["numbers"]])]


def _mask(rows: pd.DataFrame, chosen: Sequence[bool]) -> pd.Series:
    """Which rows; of no rows, too, where a bare list would choose columns."""
    return pd.Series(chosen, index=rows.index, dtype=bool)


def _by_model(trained: pd.DataFrame) -> dict[tuple[int, ...], tuple[str, pd.DataFrame]]:
    """The rows of each model, or of each combination that was trained side by side, and its name."""
    return {_numbers(str(arch)): (str(arch).replace(":", "", 1), rows) for arch, rows in trained.groupby("arch")}


def _numbers(arch: str) -> tuple[int, ...]:
    """The models that an architecture's text, or a name made of it, stands for; none if it is of another kind."""
    match = re.fullmatch(r"model:? (\d+(?:,\d+)*)", arch)
    return tuple(int(word) for word in match[1].split(",")) if match else ()


def _or_dash(value: Any) -> str:
    return "–" if value is pd.NA else str(value)
