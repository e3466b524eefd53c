"""The models of a run that prunes a network step by step: their front, candidates, costs and layers (FedNAS).

The section is ``None`` where the run has no ``sequence.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.pruned_architectures import kept_units
from lit_fednas.analysis.report.charts import Mark, Series, front_chart, line_chart
from lit_fednas.analysis.report.markup import Html, Part, join, table, tag
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import MEGABYTE, cells, client_costs, known, percent, sequence_table, share_of
from lit_fednas.formatting import axis, short
from lit_fednas.records import read_sequence

_HEAD = (
    *("model", "unit", "round", "budget", "resource", "share", "MACs", "parameters", "bytes", "accuracy"),
    *("rounds", "candidates", "MACs/client", "MB up", "MB down"),
)


def models(run: Run) -> Html | None:
    """Tables of the models, of their candidates and of what is left of the layers; accuracies and costs drawn."""
    sequence = read_sequence(run.folder)
    if sequence is None:
        return None
    found = sequence_table(run)
    iterations = [model for model in sequence["models"] if model["number"]]
    charts = [_front(sequence, found)] if found["accuracy"].notna().any() else []
    if iterations:
        ends = {one["number"]: one for one in (iterations[0], iterations[-1])}
        charts += [_candidates(one) for one in ends.values()]
        charts += _costs(sequence, iterations)
    return join(
        tag("p", _summary(sequence)),
        _table(sequence, found),
        tag("p", "Costs are of a client on the average, from the first iteration on; MACs are of forward passes."),
        tag("div", charts, class_="charts"),
        _dropped(iterations) if iterations else None,
        _layers(run),
    )


def _table(sequence: Mapping[str, Any], found: pd.DataFrame) -> Html:
    """The models; the resource has no column of its own where it is the MACs."""
    shown = [place for place, name in enumerate(_HEAD) if name != "resource" or sequence["resource"] != "macs"]
    rows = [[row[place] for place in shown] for row in map(cells, found.itertuples())]
    return table([_HEAD[place] for place in shown], rows, texts=2)


def _summary(sequence: Mapping[str, Any]) -> str:
    """How far the run has got, and what its initial model cost."""
    found = sequence["models"]
    count = len(found) - 1
    words = [f"{count} {'iterations' if count != 1 else 'iteration'}, down to "]
    words.append(f"{percent(share_of(sequence, found[-1]))} of the initial network's {_resource(sequence)}; ")
    under_way = sequence.get("under_way")
    if sequence.get("complete"):
        words.append("complete.")
    elif under_way:
        words.append(f"iteration {under_way['number']} is under way.")
    else:
        words.append("training ended before the last.")
    costs = client_costs(found[0], sequence["clients"])
    if any(costs.values()):
        up, down = (f"{costs[name] / MEGABYTE:.3g}" for name in ("bytes_up", "bytes_down"))
        words.append(
            f" The initial model took {short(costs['macs'])} MACs, {up} MB up and {down} MB down per client."
        )
    return "".join(words)


def _front(sequence: Mapping[str, Any], found: pd.DataFrame) -> Html:
    """The models by resource; a model that another one dominates is a dot."""
    rows = found.dropna(subset=["accuracy"])
    points = list(zip(rows["share"], rows["accuracy"], strict=True))
    rows_by_share = rows.sort_values(["share", "accuracy"], ascending=[True, False], kind="stable")
    best = rows_by_share[rows_by_share["accuracy"] > rows_by_share["accuracy"].cummax().shift(fill_value=-1.0)]
    marks = [Mark(float(row.share), float(row.accuracy), _said(row)) for row in best.itertuples()]
    limits = [sequence["budget"] / sequence["initial"]] if sequence.get("budget") else []
    labels = (f"share of the initial {_resource(sequence)}", "accuracy")
    return front_chart("Accuracy on the clients' validation data, and the front", 0, points, marks, limits, labels)


def _resource(sequence: Mapping[str, Any]) -> str:
    return "MACs" if sequence["resource"] == "macs" else sequence["resource"]


def _said(row: Any) -> str:
    lost = f", {row.unit} lost filters" if row.unit else ""
    return f"model {row.number}{lost}\naccuracy {row.accuracy:.4f}\n{short(row.resource)} ({percent(row.share)})"


def _candidates(model: Mapping[str, Any]) -> Html:
    """The candidates' accuracies in an iteration, the selected one first."""
    ordered = sorted(model["candidates"], key=lambda one: bool(one["unit"] != model["unit"]))
    lines = []
    for one in ordered:
        heights = enumerate(known(one["accuracies"]), start=1)
        points = [(float(round), height) for round, height in heights if height == height]
        name = f"{one['unit']} (selected)" if one["unit"] == model["unit"] else one["unit"]
        lines += [Series(name, points)] if points else []
    title = f"Candidates of iteration {model['number']}"
    return line_chart(title, lines, "round of the iteration", "accuracy")


def _costs(sequence: Mapping[str, Any], iterations: Sequence[Mapping[str, Any]]) -> list[Html]:
    """What every iteration cost a client."""
    costs = [client_costs(one, sequence["clients"]) for one in iterations]
    numbers = [float(one["number"]) for one in iterations]
    most = max(cost["macs"] for cost in costs)
    scale, text = axis("macs", most)
    macs = Series("MACs", [(number, cost["macs"] / scale) for number, cost in zip(numbers, costs, strict=True)])
    sent = [
        Series(way, [(number, cost[name] / MEGABYTE) for number, cost in zip(numbers, costs, strict=True)])
        for way, name in (("up", "bytes_up"), ("down", "bytes_down"))
    ]
    unit = text.replace(" per example", "")
    return [
        line_chart("Sent per client, by iteration", sent, "iteration", "MB", zero=True),
        line_chart("Forward passes per client, by iteration", [macs], "iteration", unit, zero=True),
    ]


def _dropped(iterations: Sequence[Mapping[str, Any]]) -> Html:
    """Which unit won in every iteration, and after which rounds the others left."""
    rows: list[list[Part]] = []
    for model in iterations:
        left: dict[int, list[str]] = {}
        for one in model["candidates"]:
            if one["dropped"] is not None:
                left.setdefault(one["dropped"], []).append(one["unit"])
        said = "; ".join(f"round {round}: {', '.join(units)}" for round, units in sorted(left.items()))
        groups = model["groups"]
        distance = sum(one["distance"] for one in groups) / len(groups) if groups else None
        spread = "–" if distance is None else f"{distance:.3g}"
        rows.append([str(model["number"]), model["unit"], str(len(groups)), spread, said or "–"])
    head = ["iteration", "selected", "groups", "mean distance of classes", "dropped"]
    return join(tag("h3", "Candidates"), table(head, rows, texts=5))


def _layers(run: Run) -> Html:
    """What is left of every layer: a bar is as long as the kept share."""
    kept = kept_units(run)
    rows: list[list[Part]] = [
        [str(number), *(_bar(int(left), int(full)) for left, full in zip(kept[number], kept[0], strict=True))]
        for number in kept.columns
    ]
    return join(tag("h3", "Filters by layer"), table(["model", *map(str, kept.index)], rows))


def _bar(left: int, full: int) -> Html:
    bar = tag("i", style=f"width: {100 * left / full:.1f}%")
    return tag("div", bar, tag("b", left), class_="block", data_tip=f"{left} of {full} ({percent(left / full)})")
