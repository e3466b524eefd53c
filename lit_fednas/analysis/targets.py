"""Rounds, computation and communication until a target accuracy, as FedHeN's Tables 1 and 2 and Figures 1 to 3.

Acar and Saligrama, 2022, section 3. Deviations: the accuracies are those that a run has logged, so that they are
of its validation set; several seeds are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.methods import COSTS, Methods, Metrics, each_run, validations
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import draw_line, label, legend, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, text_table
from lit_fednas.records.run import reaches

Value = Literal["rounds", "macs", "bytes"]
TITLES: dict[Value, str] = {
    "rounds": "Rounds",
    "macs": "Computation of all clients (multiply-accumulates of forward passes)",
    "bytes": "Communication of all clients (bytes, both ways)",
}


def rounds_to_target(run: Run, metric: str, target: float) -> int | None:
    """Returns the first round, from 1, after which a metric was at least the target; ``None`` if none was.

    Raises:
        DataError: The run has never logged the metric.
    """
    return _first(validations(run, [metric]).rename(columns={metric: "accuracy"}), target)


def default_targets(methods: Methods, metrics: Metrics) -> dict[str, list[float]]:
    """Returns per model the highest accuracy that all methods reached with all seeds, and one point less.

    The highest is rounded down to 0.1 %. The paper, too, has two targets one point apart.

    Raises:
        DataError: A run has stayed below 0.1 %, or has no such metric.
    """
    best: dict[str, float] = {}
    for model, _, run, rounds in each_run(methods, metrics):
        reached = math.floor(1000 * rounds["accuracy"].max() + 1e-3) / 1000  # 1e-3: accuracies are float32
        if not reached > 0:
            raise DataError(f"{run.folder}: {model} stayed below 0.1 %; give targets")
        best[model] = min(reached, best.get(model, 1.0))
    return {model: [t for t in (top, round(top - 0.01, 3)) if t > 0] for model, top in best.items()}


def target_table(methods: Methods, metrics: Metrics, targets: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Returns what each run needed for each target.

    Args:
        methods: Runs that differ in their seeds, by method.
        metrics: Each model's metric.
        targets: Each model's accuracies, above 0 and at most 1.

    Returns:
        ``model``, ``target``, ``method``, ``run``, ``metric``, ``reached``, ``rounds``, ``macs``, ``bytes_down``,
        ``bytes_up``. Where a run has not reached it, the figures are those of its last validation: it would need
        more.

    Raises:
        DataError: A run has never logged a metric, or a target is out of range.
    """
    for model, given in targets.items():
        for target in given:
            if not 0 < target <= 1:
                raise DataError(f"{model}: the target {target:g} must be above 0 and at most 1 (0.5: 50 %)")
    rows = []
    for model, method, run, validated in each_run(methods, metrics):
        for target in targets[model]:
            rounds = _first(validated, target)
            there = validated.iloc[-1] if rounds is None else validated[validated["rounds"] == rounds].iloc[0]
            names = {"model": model, "target": target, "method": method, "run": run.name}
            far = {"rounds": int(there["rounds"]), **{cost: there[cost] for cost in COSTS}}
            rows.append({**names, "metric": metrics[model][method], "reached": rounds is not None, **far})
    return pd.DataFrame(rows)


def target_markdown(table: pd.DataFrame, value: Value = "rounds") -> str:
    """Writes a :func:`target_table` as the paper does: a column per method, and the first method's gain.

    A cell is the mean over the seeds, and in brackets each seed's figure. A seed that has not reached the target
    shows ``>`` and its last validation; the mean over such seeds is a lower bound, and has the ``>`` too. The gain
    is the best other method's figure by the first method's; ``-`` where the first has not reached the target with
    all its seeds, or there is no other.

    Args:
        table: The table.
        value: What is counted.

    Example:
        >>> rows = [("big", 0.5, "A", True, 2), ("big", 0.5, "B", True, 6), ("big", 0.5, "B", False, 8)]
        >>> columns = ["model", "target", "method", "reached", "rounds"]
        >>> print(target_markdown(pd.DataFrame(rows, columns=columns)))
        | model   |   accuracy |   A |            B |   gain |
        |:--------|-----------:|----:|-------------:|-------:|
        | big     |       50 % |   2 | > 7 (6, > 8) | > 3.5× |
    """
    if value == "bytes":
        table = table.assign(bytes=table["bytes_down"] + table["bytes_up"])
    methods = list(dict.fromkeys(table["method"]))
    body = []
    for (model, target), rows in table.groupby(["model", "target"], sort=False):
        groups = [rows[rows["method"] == method] for method in methods]
        means = [(group[value].mean(skipna=False), not group["reached"].all()) for group in groups]
        cells = [_cell(group, value) for group in groups]
        body.append([str(model), f"{100 * float(target):g} %", *cells, _gain(means)])
    return text_table(["model", "accuracy", *methods, "gain"], body, markdown=True)


def validation_steps(methods: Methods, metrics: Metrics) -> str:
    """Writes a sentence on how often the runs were validated, which bounds the precision of their rounds.

    Raises:
        DataError: A run has never logged a metric.
    """
    steps: dict[int, set[str]] = {}
    for _, method, _, validated in each_run(methods, metrics):
        for step in {int(step) for step in validated["rounds"].diff().dropna()}:
            steps.setdefault(step, set()).add(method)
    if len(steps) < 2:
        return f"Validated every {next(iter(steps))} rounds." if steps and 1 not in steps else ""
    each = [f"{step} ({', '.join(one for one in methods if one in steps[step])})" for step in sorted(steps)]
    return f"Rounds from one validation to the next: {', '.join(each)}."


def curves_figure(methods: Methods, metrics: Metrics) -> Figure:
    """Draws accuracy over the rounds, as Figures 1 to 3: a panel per model, a line per method.

    A line is the mean over the seeds at the rounds that all of them have validated; the band goes from the least
    to the greatest.

    Raises:
        DataError: A run has never logged a metric.
    """
    figure = new_figure(len(metrics), in_row=3)
    panels = dict(zip(metrics, figure.axes, strict=True))
    curves: dict[tuple[str, str], list[pd.Series]] = {}
    for model, method, _, rows in each_run(methods, metrics):
        curves.setdefault((model, method), []).append(rows.set_index("rounds")["accuracy"])
    for (model, method), seeds in curves.items():
        both = 100 * pd.concat(seeds, axis=1, join="inner").sort_index()
        bounds = both.min(axis=1), both.max(axis=1)
        draw_line(panels[model], both.index, both.mean(axis=1), bounds, list(methods).index(method), method)
    for model, axes in panels.items():
        axes.set_title(model, fontsize=9)
        tested = all(name.startswith("test/") for name in metrics[model].values())
        label(axes, "round", f"{'test' if tested else 'validation'} accuracy (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure)
    return figure


def _first(validated: pd.DataFrame, target: float) -> int | None:
    reached = validated["rounds"][[reaches(accuracy, target) for accuracy in validated["accuracy"]]]
    return None if reached.empty else int(reached.iloc[0])


def _cell(rows: pd.DataFrame, value: Value) -> str:
    """Writes the mean over the seeds, and each seed's figure where there are several."""
    mean = ("" if rows["reached"].all() else "> ") + _number(rows[value].mean(skipna=False), value)
    each = [
        ("" if reached else "> ") + _number(number, value)
        for reached, number in zip(rows["reached"], rows[value], strict=True)
    ]
    return f"{mean} ({', '.join(each)})" if len(each) > 1 else mean


def _number(number: float, value: Value) -> str:
    if value == "rounds":
        return f"{number:.1f}".removesuffix(".0")
    return short(number, "B" if value == "bytes" else "")


def _gain(means: Sequence[tuple[float, bool]]) -> str:
    """Writes the best other method's mean by the first method's, from means and whether those are bounds."""
    (first, unreached), *others = means
    if unreached or not others or any(math.isnan(mean) for mean, _ in means) or first == 0:
        return "-"
    best, at_least = min(others)
    return f"{'> ' if at_least else ''}{best / first:.1f}×"
