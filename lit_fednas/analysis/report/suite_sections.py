"""The models of a run that grows them: a table, their tree, and the losses in training (FedTrans, section 4).

The section is ``None`` where the run has no ``suite.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lit_fednas.analysis.report.charts import Event, Series, drawing, figure, line_chart, look
from lit_fednas.analysis.report.markup import Html, Part, code, join, table, tag
from lit_fednas.analysis.report.scales import Scale
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.suite import ALL, model_losses, round_ticks, shortened, suite_table, when
from lit_fednas.formatting import short
from lit_fednas.records import read_suite, step_words

_WIDTH, _LEFT, _RIGHT, _TEXT = 400, 78, 206, 222
_LINE, _TOP, _BOTTOM = 40, 20, 40
_LETTERS = 22  # of what was done, that fit beside the tree


def models(run: Run) -> Html | None:
    """A table of the models, the tree of their descent, and the loss of the clients of each."""
    suite = read_suite(run.folder)
    if suite is None:
        return None
    found = suite["models"]
    charts = [_tree(found)]
    losses = model_losses(run, max(1, len(run.rounds) // 50))
    lines = [
        Series(str(name), [(float(x), float(y)) for x, y in line.dropna().items()], wide=name == ALL)
        for name, line in losses.items()
    ]
    if any(line.points for line in lines):
        title = "Loss in the clients' training, by model; upright, where one was added"
        charts.append(line_chart(title, lines, "round", "loss", events=_events(found)))
    ended = "no larger one is to be added" if suite.get("complete") else "training ended before the largest"
    text = f"{len(found)} {'models' if len(found) > 1 else 'model'}; {ended}."
    return join(tag("p", text), _table(run, found), tag("div", charts, class_="charts"))


def _table(run: Run, found: Sequence[Mapping[str, Any]]) -> Html:
    head = ["model", "from", "added", "MACs", "parameters", "bytes", "clients", "trainings", "convergence"]
    rows: list[list[Part]] = [
        [
            *(str(row.number), "–" if model["parent"] is None else str(model["parent"]), when(model)),
            *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
            *(f"{row.clients:,}", f"{row.trainings:,}", _four(model.get("degree_of_convergence"))),
            *(row.done or "–", code(str(model.get("cells", "")))),
        ]
        for row, model in zip(suite_table(run).itertuples(), found, strict=True)
    ]
    return table([*head, "what was done", "cells"], rows, texts=3)


def _tree(found: Sequence[Mapping[str, Any]]) -> Html:
    """A line per model, in the order in which they were added; across, its multiply-accumulates."""
    macs = [model["macs"] for model in found]
    reach = max((max(macs) / min(macs)) ** 0.1, 1.5)
    across = Scale(min(macs) / reach, max(macs) * reach, _LEFT, _RIGHT, log=True)
    places = {model["number"]: (across(model["macs"]), _TOP + _LINE * line) for line, model in enumerate(found)}
    bottom = _TOP + _LINE * (len(found) - 1) + 22
    shown = round_ticks(across.low, across.high, most=3)
    inside = [
        tag(
            "g",
            [tag("path", d=f"M{across(x)} 4V{bottom}", class_="grid") for x in shown],
            [tag("text", short(x), x=across(x), y=bottom + 16, class_="middle") for x in shown],
            tag("path", d=f"M{_LEFT} {bottom}H{_RIGHT}", class_="axis"),
            tag("text", "MACs per example", x=(_LEFT + _RIGHT) / 2, y=bottom + 34, class_="middle name"),
            [
                tag("text", when(model), x=_LEFT - 8, y=places[model["number"]][1] + 4, class_="end")
                for model in found
            ],
            class_="frame",
        ),
        [_branch(places, model) for model in found],
        [_node(*places[model["number"]], model) for model in found],
    ]
    title = "Models by descent"
    return figure(title, drawing(title, inside, _WIDTH, bottom + _BOTTOM))


def _branch(places: Mapping[int, tuple[float, float]], model: Mapping[str, Any]) -> Html | None:
    if model["parent"] not in places:
        return None
    (before, above), (x, y) = places[model["parent"]], places[model["number"]]
    return tag("path", d=f"M{before} {above}V{y}H{x}", class_="branch")


def _node(x: float, y: float, model: Mapping[str, Any]) -> Html:
    """A model's number, its read-out, and what stands beside it."""
    done = step_words(model["steps"]) or "initial model"
    costs = f"{short(model['macs'])} MACs, {short(model['parameters'])}"
    said = [f"model {model['number']}, {when(model)}: {done}", f"{costs} parameters", str(model.get("cells", ""))]
    activeness = model.get("activeness") or {}
    if activeness:
        cells = ", ".join(f"{cell} {_four(value)}" for cell, value in activeness.items())
        said.append(f"activeness of model {model['parent']}: {cells}")
    mark = tag(
        "g",
        tag("circle", cx=x, cy=y, r=14, class_="hit"),
        tag("circle", cx=x, cy=y, r=9, class_="dot"),
        tag("text", str(model["number"]), x=x, y=y + 3.5, class_="middle"),
        class_=f"mark node {look(model['number'])}",
        data_tip="\n".join(said),
    )
    beside = [
        tag("text", f"{costs} par.", x=_TEXT, y=y - 2),
        tag("text", shortened(done, _LETTERS), x=_TEXT, y=y + 13, class_="note"),
    ]
    return join(mark, beside)


def _events(found: Sequence[Mapping[str, Any]]) -> list[Event]:
    return [
        Event(float(model["round"]), f"+{model['number']}", f"model {model['number']} is added", model["number"])
        for model in found
        if model["round"] is not None
    ]


def _four(number: float | None) -> str:
    return "–" if number is None else f"{number:.4g}"
