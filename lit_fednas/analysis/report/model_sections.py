"""The models of runs that grow a suite (FedTrans, section 4) or prune a network step by step (FedNAS).

A section returns nothing where the run has no ``suite.json`` or ``sequence.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.charts import Chart, Charts, Event, Tip, draw_front, line_chart, tree_chart
from lit_fednas.analysis.models import (
    ALL_CLIENTS,
    MEGABYTE,
    client_costs,
    kept_units,
    model_rounds,
    sequence_table,
    suite_table,
)
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import label, new_figure
from lit_fednas.analysis.tables import DASH, Bar, Cell, Code, Column, Table, count, size
from lit_fednas.formatting import GREY, axis, figure_text, fixed, percent, short
from lit_fednas.records import read_sequence, read_suite, step_words

_SEQUENCE_NOTE = (
    "What decides is the accuracy of the winner's group of clients, on their validation data; tests are on the test "
    "data of all clients, before and after fine-tuning. Costs are of a client on the average, from the first "
    "iteration on; MACs are of forward passes."
)
_LETTERS = 24  # of what was done, that fit beside the tree


def suite(run: Run) -> list[Any]:
    """Shows a table of the models, the tree of their descent, losses and clients of each."""
    record = read_suite(run.folder)
    if record is None:
        return []
    models = record["models"]
    charts = [_tree(models)]
    events = [
        Event(float(model["round"]), f"+{model['number']}", f"model {model['number']} is added", model["number"])
        for model in models
        if model["round"] is not None
    ]
    losses, clients = model_rounds(run, window=max(1, len(run.rounds) // 50))
    names = [f"model {model['number']}" for model in models]
    tables = (
        ("Loss in the clients' training, by model; upright: one was added", "loss", losses),
        ("Clients that trained each model", "clients", clients),
    )
    for title, y_label, table in tables:
        if table.notna().any(axis=None):
            charts.append(line_chart(title, table, "round", y_label, names=names, wide=ALL_CLIENTS, events=events))
    charts += _convergence(run, events)
    ended = "no larger one is to be added" if record.get("complete") else "training ended before the largest"
    text = f"{len(models)} {'models' if len(models) > 1 else 'model'}; {ended}."
    return [text, _suite_table(run, models), Charts(charts)]


def _suite_table(run: Run, models: Sequence[Mapping[str, Any]]) -> Table:
    table = suite_table(run).assign(
        added=[_added(model) for model in models],
        convergence=[_digits(model.get("degree_of_convergence")) for model in models],
        cells=[str(model.get("cells", "")) for model in models],
    )
    columns: dict[str, Column] = {
        "number": ("model", str),
        "parent": ("from", count),
        "added": str,
        "macs": ("MACs", short),
        "parameters": short,
        "bytes": size,
        "clients": count,
        "trainings": count,
        "convergence": str,
        "done": ("what was done", lambda done: done or DASH),
        "cells": Code,
    }
    return Table.of(table, columns, left=3)


def _convergence(run: Run, events: Sequence[Event]) -> list[Chart]:
    """Draws the degree of convergence with its standard error, and the threshold below which a model is added."""
    degree, error = (run.logged(f"transform/{name}") for name in ("doc", "doc_error"))
    if degree.empty or error.empty:
        return []
    lines = {"degree of convergence": pd.DataFrame({"mean": degree, "min": degree - error, "max": degree + error})}
    threshold = (run.settings.get("transform_on_convergence") or {}).get("init_args", {}).get("threshold")
    if threshold is not None:
        lines["threshold"] = pd.Series(float(threshold), index=degree.index)
    title = "Degree of convergence and its standard error; upright: a model is added"
    return [line_chart(title, lines, "round", "fall of the loss per round", wide="threshold", events=events)]


def _tree(models: Sequence[Mapping[str, Any]]) -> Chart:
    """Draws a line per model, in the order in which they were added; across, its multiply-accumulates."""
    order = {model["number"]: index for index, model in enumerate(models)}
    nodes, words = [], []
    for model in models:
        done = step_words(model["steps"]) or "initial model"
        costs = f"{short(model['macs'])} MACs, {short(model['parameters'])}"
        lines = [f"model {model['number']}, {_added(model)}: {done}", f"{costs} parameters"]
        lines.append(str(model.get("cells", "")))
        if model.get("activeness"):
            activeness = ", ".join(f"{cell} {_digits(value)}" for cell, value in model["activeness"].items())
            lines.append(f"activeness of model {model['parent']}: {activeness}")
        nodes.append(Tip(model["macs"], model["number"], "\n".join(lines)))
        words.append((_added(model), f"{costs} par.\n{figure_text(done, _LETTERS)}"))
    return tree_chart("Models by descent", nodes, [order.get(model["parent"]) for model in models], words)


def sequence(run: Run) -> list[Any]:
    """Shows tables of the models, their candidates and the kept layers; accuracies and costs drawn."""
    record = read_sequence(run.folder)
    if record is None:
        return []
    table = sequence_table(run)
    iterations = [model for model in record["models"] if model["number"]]
    charts = [_front(record, table)] if table["accuracy"].notna().any() else []
    if iterations:
        ends = {model["number"]: model for model in (iterations[0], iterations[-1])}
        charts += [_candidates(model, list(record["units"])) for model in ends.values()]
        charts += _costs(record)
    return [
        _summary(record, table),
        _sequence_table(run, record, table),
        _SEQUENCE_NOTE,
        *([Charts(charts)] if charts else []),
        *([_dropped(iterations)] if iterations else []),
        _layers(run),
    ]


def _sequence_table(run: Run, record: Mapping[str, Any], table: pd.DataFrame) -> Table:
    """Lists the models; the resource is left out where it is the MACs, which have a column."""
    tested = run.finetuned(table="models")
    numbers = tested["arch"].astype(str).str.extract(r"^model: (\d+)$", expand=False).astype(float)
    table = table.merge(
        tested[["accuracy_before", "accuracy"]].assign(number=numbers), "left", "number", suffixes=("", "_after")
    )
    tests: dict[str, Column] = {"accuracy_before": ("test", fixed), "accuracy_after": ("test, fine-tuned", fixed)}
    spent = ["client_macs", "up_mb", "down_mb"]
    table[spent] = table[spent].where(table["number"] > 0)
    columns: dict[str, Column] = {
        "number": ("model", str),
        "unit": lambda unit: unit or DASH,
        "round": count,
        "budget": short,
        **({} if record["resource"] == "macs" else {"resource": short}),
        "share": percent,
        "macs": ("MACs", short),
        "parameters": short,
        "bytes": size,
        "accuracy": ("decides", fixed),
        **(tests if len(tested) else {}),
        "rounds": count,
        "candidates": count,
        "client_macs": ("MACs/client", short),
        "up_mb": ("MB up", _digits),
        "down_mb": ("MB down", _digits),
    }
    return Table.of(table, columns, left=2)


def _summary(record: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Returns how far the run has got, and what its initial model cost."""
    number, under_way = len(table) - 1, record.get("under_way")
    state = f"iteration {under_way['number']} is under way" if under_way else "training ended before the last"
    state = "complete" if record.get("complete") else state
    share = f"{percent(table['share'].iloc[-1])} of the initial network's {_resource(record)}"
    text = f"{number} {'iterations' if number != 1 else 'iteration'}, down to {share}; {state}."
    macs, up, down = client_costs(record).iloc[0][["macs", "bytes_up", "bytes_down"]]
    if not (macs or up or down):
        return text
    sent = f"{up / MEGABYTE:.3g} MB up and {down / MEGABYTE:.3g} MB down"
    return f"{text} The initial model took {short(macs)} MACs, {sent} per client."


def _front(record: Mapping[str, Any], table: pd.DataFrame) -> Chart:
    """Draws the models by resource; a model that another one dominates is a dot of the cloud."""
    rows = table.dropna(subset=["accuracy"]).sort_values(["share", "accuracy"], ascending=[True, False])
    front = rows[rows["accuracy"] > rows["accuracy"].cummax().shift(fill_value=-1.0)]
    tips = []
    for row in front.itertuples():
        lost = f", {row.unit} lost filters" if row.unit else ""
        lines = (f"model {row.number}{lost}", f"accuracy {row.accuracy:.4f}")
        tip = "\n".join([*lines, f"{short(row.resource)} ({percent(row.share)})"])
        tips.append(Tip(float(row.share), float(row.accuracy), tip))
    figure = new_figure()
    (axes,) = figure.axes
    axes.scatter(rows["share"], rows["accuracy"], s=6, color=GREY)
    limits = [record["budget"] / record["initial"]] if record.get("budget") else []
    draw_front(axes, front.set_index("share")["accuracy"], 0, "front", limits)
    label(axes, f"share of the initial {_resource(record)}", "accuracy")
    return Chart("Accuracy on the clients' validation data, and the front", figure, tips)


def _candidates(model: Mapping[str, Any], units: Sequence[str]) -> Chart:
    """Draws the candidates' accuracies in an iteration, the selected one first."""
    selected_first = sorted(model["candidates"], key=lambda candidate: bool(candidate["unit"] != model["unit"]))
    lines = {
        candidate["unit"]: pd.Series(candidate["accuracies"], dtype=float).rename(lambda index: index + 1.0)
        for candidate in selected_first
    }
    title = f"Candidates of iteration {model['number']}: {model['unit']} is selected"
    return line_chart(title, lines, "round of the iteration", "accuracy", names=units)


def _costs(record: Mapping[str, Any]) -> list[Chart]:
    """Draws what every iteration cost a client."""
    costs = client_costs(record)[1:]
    scale, text = axis("macs", float(costs["macs"].max()))
    sent = {way: costs[f"bytes_{way}"] / MEGABYTE for way in ("up", "down")}
    macs, unit = {"MACs": costs["macs"] / scale}, text.replace(" per example", "")
    return [
        line_chart("Sent per client, by iteration", sent, "iteration", "MB", zero=True),
        line_chart("Forward passes per client, by iteration", macs, "iteration", unit, zero=True),
    ]


def _dropped(iterations: Sequence[Mapping[str, Any]]) -> Table:
    """Lists which unit won in every iteration, and after which rounds the others were dropped."""
    rows = []
    for model in iterations:
        dropped: dict[int, list[str]] = {}
        for candidate in model["candidates"]:
            if candidate["dropped"] is not None:
                dropped.setdefault(candidate["dropped"], []).append(candidate["unit"])
        text = "; ".join(f"round {round}: {', '.join(units)}" for round, units in sorted(dropped.items()))
        groups = model["groups"]
        distance = f"{sum(group['distance'] for group in groups) / len(groups):.3g}" if groups else DASH
        rows.append([str(model["number"]), model["unit"], str(len(groups)), distance, text or DASH])
    head = ["iteration", "selected", "groups", "mean distance of classes", "dropped"]
    return Table(head, rows, left=5, title="Candidates")


def _layers(run: Run) -> Table:
    """Lists what is left of every layer: a bar is as long as the kept share."""
    kept = kept_units(run)
    rows: list[list[Cell]] = []
    for number in kept.columns:
        pairs = [(int(left), int(full)) for left, full in zip(kept[number], kept[0], strict=True)]
        bars = [Bar(left / full, str(left), f"{left} of {full} ({percent(left / full)})") for left, full in pairs]
        rows.append([str(number), *bars])
    return Table(["model", *map(str, kept.index)], rows, title="Filters by layer")


def _added(model: Mapping[str, Any]) -> str:
    """Returns when a model was added."""
    return "start" if model["round"] is None else f"round {model['round']}"


def _resource(record: Mapping[str, Any]) -> str:
    return "MACs" if record["resource"] == "macs" else str(record["resource"])


def _digits(number: float | None) -> str:
    return DASH if number is None or pd.isna(number) else f"{number:.4g}"
