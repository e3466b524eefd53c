"""The models of runs that grow a suite (FedTrans, section 4) or prune a network step by step (FedNAS).

A section returns nothing where the run has no ``suite.json`` or ``sequence.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import pandas as pd

from lit_fednas.analysis.report.blocks import Bar, Block, Cell, Chart, Charts, Code, Table
from lit_fednas.analysis.report.charts import Event, Mark, front_chart, line_chart, tree_chart
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import MEGABYTE, client_accuracies, client_costs, kept_units, sequence_table
from lit_fednas.analysis.suite import ALL_CLIENTS, model_rounds, suite_table
from lit_fednas.formatting import axis, fixed, percent, short
from lit_fednas.records import read_sequence, read_suite, step_words

_SEQUENCE_NOTE = (
    "What decides is the accuracy of the winner's group of clients, on their validation data; tests are on the test "
    "data of all clients, before and after fine-tuning. Costs are of a client on the average, from the first "
    "iteration on; MACs are of forward passes."
)
_LETTERS = 24  # of what was done, that fit beside the tree


def suite(run: Run) -> list[Block]:
    """Shows a table of the models, the tree of their descent, losses and clients of each."""
    record = read_suite(run.folder)
    if record is None:
        return []
    models = record["models"]
    charts = [_tree(models)]
    window = max(1, len(run.rounds) // 50)
    events = [
        Event(float(model["round"]), f"+{model['number']}", f"model {model['number']} is added", model["number"])
        for model in models
        if model["round"] is not None
    ]
    losses, clients = model_rounds(run, window)
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


def sequence(run: Run) -> list[Block]:
    """Shows tables of the models, their candidates and the kept layers; accuracies and costs drawn."""
    record = read_sequence(run.folder)
    if record is None:
        return []
    table = sequence_table(run)
    iterations = [model for model in record["models"] if model["number"]]
    charts = [_front(record, table)] if table["accuracy"].notna().any() else []
    if iterations:
        ends = {one["number"]: one for one in (iterations[0], iterations[-1])}
        charts += [_candidates(one, list(record["units"])) for one in ends.values()]
        charts += _costs(record)
    return [
        _summary(record, table),
        _sequence_table(record, table, client_accuracies(run)),
        _SEQUENCE_NOTE,
        *([Charts(charts)] if charts else []),
        *([_dropped(iterations)] if iterations else []),
        _layers(run),
    ]


def _suite_table(run: Run, models: Sequence[Mapping[str, Any]]) -> Table:
    head = ["model", "from", "added", "MACs", "parameters", "bytes", "clients", "trainings", "convergence"]
    rows: list[list[Cell]] = [
        [
            *(str(row.number), "–" if model["parent"] is None else str(model["parent"]), _added(model)),
            *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
            *(f"{row.clients:,}", f"{row.trainings:,}", _digits(model.get("degree_of_convergence"))),
            *(row.done or "–", Code(str(model.get("cells", "")))),
        ]
        for row, model in zip(suite_table(run).itertuples(), models, strict=True)
    ]
    return Table([*head, "what was done", "cells"], rows, texts=3)


def _convergence(run: Run, events: Sequence[Event]) -> list[Chart]:
    """Draws the degree of convergence with its standard error, and the threshold below which a model is added."""
    rounds = run.rounds.set_index("round")
    if not {"transform/doc", "transform/doc_error"} <= set(rounds.columns):
        return []
    known = rounds[["transform/doc", "transform/doc_error"]].astype(float).dropna()
    degree, error = known["transform/doc"], known["transform/doc_error"]
    if degree.empty:
        return []
    lines = {"degree of convergence": degree}
    threshold = (run.settings.get("transform_on_convergence") or {}).get("init_args", {}).get("threshold")
    if threshold is not None:
        lines["threshold"] = pd.Series(float(threshold), index=degree.index)
    title = "Degree of convergence and its standard error; upright: a model is added"
    band = (degree - error, degree + error)
    given: dict[str, Any] = {"band": band, "wide": "threshold", "events": events}
    return [line_chart(title, lines, "round", "fall of the loss per round", **given)]


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
        nodes.append(Mark(model["macs"], model["number"], "\n".join(lines)))
        words.append((_added(model), f"{costs} par.\n{shorten(done, _LETTERS, placeholder='…')}"))
    return tree_chart("Models by descent", nodes, [order.get(model["parent"]) for model in models], words)


def _sequence_table(record: Mapping[str, Any], table: pd.DataFrame, tested: pd.DataFrame) -> Table:
    """Lists the models; the resource is left out where it is the MACs, which have a column."""
    resource = [] if record["resource"] == "macs" else ["resource"]
    tests = {} if tested.empty else {"clients_before": "test", "clients_after": "test, fine-tuned"}
    table = table.merge(tested, how="left", on="number")
    head = ["model", "unit", "round", "budget", *resource, "share", "MACs", "parameters", "bytes", "decides"]
    rows = [
        [
            *(str(row.number), row.unit or "–", "–" if pd.isna(row.round) else str(row.round), short(row.budget)),
            *(short(row.resource) for _ in resource),
            *(percent(row.share), short(row.macs), short(row.parameters), short(row.bytes, "B")),
            *(fixed(row.accuracy), *(fixed(getattr(row, name)) for name in tests)),
            *(str(row.rounds), str(row.candidates)),
            *((short(row.client_macs), f"{row.up_mb:.4g}", f"{row.down_mb:.4g}") if row.number else ["–"] * 3),
        ]
        for row in table.itertuples()
    ]
    head += [*tests.values(), "rounds", "candidates", "MACs/client", "MB up", "MB down"]
    return Table(head, rows, texts=2)


def _summary(record: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Returns how far the run has got, and what its initial model cost."""
    count, under_way = len(table) - 1, record.get("under_way")
    state = f"iteration {under_way['number']} is under way" if under_way else "training ended before the last"
    state = "complete" if record.get("complete") else state
    share = f"{percent(table['share'].iloc[-1])} of the initial network's {_resource(record)}"
    text = f"{count} {'iterations' if count != 1 else 'iteration'}, down to {share}; {state}."
    macs, up, down = client_costs(record).iloc[0][["macs", "bytes_up", "bytes_down"]]
    if not (macs or up or down):
        return text
    sent = f"{up / MEGABYTE:.3g} MB up and {down / MEGABYTE:.3g} MB down"
    return f"{text} The initial model took {short(macs)} MACs, {sent} per client."


def _front(record: Mapping[str, Any], table: pd.DataFrame) -> Chart:
    """Draws the models by resource; a model that another one dominates is a dot of the cloud."""
    rows = table.dropna(subset=["accuracy"]).sort_values(["share", "accuracy"], ascending=[True, False])
    front = rows[rows["accuracy"] > rows["accuracy"].cummax().shift(fill_value=-1.0)]
    marks = []
    for row in front.itertuples():
        lost = f", {row.unit} lost filters" if row.unit else ""
        lines = (f"model {row.number}{lost}", f"accuracy {row.accuracy:.4f}")
        tip = "\n".join([*lines, f"{short(row.resource)} ({percent(row.share)})"])
        marks.append(Mark(float(row.share), float(row.accuracy), tip))
    cloud = rows.set_index("share")["accuracy"]
    limits = [record["budget"] / record["initial"]] if record.get("budget") else []
    labels = (f"share of the initial {_resource(record)}", "accuracy")
    title = "Accuracy on the clients' validation data, and the front"
    return front_chart(title, 0, cloud, marks, [], limits, labels)


def _candidates(model: Mapping[str, Any], units: Sequence[str]) -> Chart:
    """Draws the candidates' accuracies in an iteration, the selected one first."""
    lines = {
        one["unit"]: pd.Series(one["accuracies"], dtype=float).rename(lambda index: index + 1.0)
        for one in sorted(model["candidates"], key=lambda one: bool(one["unit"] != model["unit"]))
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
        for one in model["candidates"]:
            if one["dropped"] is not None:
                dropped.setdefault(one["dropped"], []).append(one["unit"])
        text = "; ".join(f"round {round}: {', '.join(units)}" for round, units in sorted(dropped.items()))
        groups = model["groups"]
        distance = f"{sum(one['distance'] for one in groups) / len(groups):.3g}" if groups else "–"
        rows.append([str(model["number"]), model["unit"], str(len(groups)), distance, text or "–"])
    head = ["iteration", "selected", "groups", "mean distance of classes", "dropped"]
    return Table(head, rows, texts=5, title="Candidates")


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
    return "–" if number is None else f"{number:.4g}"
