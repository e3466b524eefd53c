"""Rounds, computation and communication until a target accuracy, as FedHeN's Tables 1 and 2.

Acar and Saligrama, 2022, section 3. Deviations: the accuracies are those that a run has logged, so that they are
of its validation set; several seeds are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from lit_fednas.analysis.methods import COSTS, Methods, Metrics, each_run
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, text_table
from lit_fednas.records.measures import reaches

Value = Literal["rounds", "macs", "bytes"]
TITLES: dict[Value, str] = {
    "rounds": "Rounds",
    "macs": "Computation of all clients (multiply-accumulates of forward passes)",
    "bytes": "Communication of all clients (bytes, both ways)",
}


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
        ``bytes_up``. Where a run has not reached it, the figures are those of its last validation: it would need more.

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
            reached = validated[[reaches(accuracy, target) for accuracy in validated["accuracy"]]]
            spent = validated.iloc[-1] if reached.empty else reached.iloc[0]
            names = {"model": model, "target": target, "method": method, "run": run.name}
            names |= {"metric": metrics[model][method], "reached": not reached.empty}
            rows.append({**names, "rounds": int(spent["rounds"]), **spent[list(COSTS)]})
    return pd.DataFrame(rows)


def target_markdown(table: pd.DataFrame, value: Value = "rounds") -> str:
    """Returns a :func:`target_table` as the paper does: a column per method, and the first method's gain.

    A cell is the mean over the seeds, and in brackets each seed's figure. A seed that has not reached the target
    shows ``>`` and its last validation; the mean over such seeds is a lower bound, and has the ``>`` too. The gain
    is the best other method's figure by the first method's; ``-`` where the first has not reached the target with
    all its seeds, or no other method is given.

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
        means, cells = [], []
        for method in methods:
            seeds = rows[rows["method"] == method]
            means.append((seeds[value].mean(skipna=False), not seeds["reached"].all()))
            each = [_number(*one, value) for one in zip(seeds[value], ~seeds["reached"], strict=True)]
            cells.append(_number(*means[-1], value) + (f" ({', '.join(each)})" if len(each) > 1 else ""))
        body.append([str(model), f"{100 * float(target):g} %", *cells, _gain(means)])
    return text_table(["model", "accuracy", *methods, "gain"], body, markdown=True)


def validation_steps(methods: Methods, metrics: Metrics) -> str:
    """Returns a sentence on how often the runs were validated, which bounds the precision of their rounds."""
    steps: dict[int, set[str]] = {}
    for _, method, _, validated in each_run(methods, metrics):
        for step in {int(step) for step in validated["rounds"].diff().dropna()}:
            steps.setdefault(step, set()).add(method)
    if len(steps) < 2:
        return f"Validated every {next(iter(steps))} rounds." if steps and 1 not in steps else ""
    each = [f"{step} ({', '.join(one for one in methods if one in steps[step])})" for step in sorted(steps)]
    return f"Rounds from one validation to the next: {', '.join(each)}."


def _number(number: float, bound: bool, value: Value) -> str:
    """Writes a figure, with ``>`` before a lower bound."""
    text = f"{number:.1f}".removesuffix(".0") if value == "rounds" else short(number, "B" * (value == "bytes"))
    return f"> {text}" if bound else text


def _gain(means: Sequence[tuple[float, bool]]) -> str:
    """Writes the best other method's mean by the first method's, from means and whether those are bounds."""
    (first, unreached), *others = means
    if unreached or not others or any(math.isnan(mean) for mean, _ in means) or first == 0:
        return "-"
    best, at_least = min(others)
    return f"{'> ' if at_least else ''}{best / first:.1f}×"
