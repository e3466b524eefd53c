"""What a run itself has to show: headline, curves, subnets, costs, the clients' data, settings.

Every section returns ``None`` where the run lacks its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lit_fednas.analysis.report.charts import Series, line_chart
from lit_fednas.analysis.report.dots import dot_plot
from lit_fednas.analysis.report.markup import Html, Part, code, join, table, tag
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.tables import client_table, independent_costs, setting_rows, subnet_rounds, total_costs
from lit_fednas.formatting import axis, cost_text, short


def headline(run: Run) -> Html:
    """What was trained on what, for how long, and what came out."""
    best = run.subnets("val").sort_values("accuracy").tail(1)
    search = run.search()
    tiles = [
        ("rounds", f"{len(run.rounds):,}", ""),
        *(("best evaluated subnet", f"{row.accuracy:.3f}", row.subnet) for row in best.itertuples()),
    ]
    if search is not None:
        for _, row in search.tiers.iterrows():
            cost = cost_text(search.cost, row[search.cost])
            tiles.append((f"best of {row['tier']}", f"{row['val_accuracy']:.3f}", f"{cost} {_word(search.cost)}"))
    if run.ledger and run.ledger.get("times_less_computation"):
        times = f"{run.ledger['times_less_computation']:.2f} ×"
        tiles.append(("less computation", times, "than the subnets one by one"))
    drawn = [
        tag("div", tag("small", name), tag("strong", value), tag("span", note), class_="tile")
        for name, value, note in tiles
    ]
    return tag("header", tag("h1", run.name), tag("p", _sentence(run.settings)), tag("div", drawn, class_="tiles"))


def curves(run: Run) -> Html | None:
    """Validation accuracy per subnet, the clients' losses, and a table of the clients."""
    accuracies = subnet_rounds([run])
    lines = [
        Series(str(name), list(zip(rows["round"], rows["accuracy"], strict=True)))
        for name, rows in accuracies.groupby("subnet", sort=False)
    ]
    charts = [line_chart("Validation accuracy", lines, "round", "accuracy")] if lines else []
    losses = run.clients.groupby("round")["loss"].quantile([0.25, 0.5, 0.75]).unstack().dropna()
    if len(losses):
        band = list(zip(losses[0.25], losses[0.75], strict=True))
        line = Series("median", list(zip(losses.index, losses[0.5], strict=True)), band)
        title = "Loss in the clients' training: median, and half of the clients"
        charts.append(line_chart(title, [line], "round", "loss"))
    if not charts:
        return None
    return join(tag("div", charts, class_="charts"), _clients(run))


def subnets(run: Run) -> Html | None:
    """The evaluated subnets with their costs."""
    splits = {split: run.subnets(split).set_index("subnet") for split in ("val", "test")}
    splits = {split: found for split, found in splits.items() if len(found)}
    every = pd.concat(splits.values()) if splits else pd.DataFrame()
    if every.empty:
        return None
    every = every[~every.index.duplicated()].sort_values("macs")
    rows = [
        [
            *(name, *(cost_text(cost, row[cost]) for cost in ("macs", "parameters", "bytes"))),
            *(_four(found[value].get(name)) for found in splits.values() for value in ("accuracy", "loss")),
            code(row["arch"]),
        ]
        for name, row in every.iterrows()
    ]
    head = ["subnet", "MACs", "parameters", "bytes"]
    head += [f"{split} {value}" for split in splits for value in ("accuracy", "loss")]
    return table([*head, "architecture"], rows)


def costs(run: Run) -> Html | None:
    """What the clients spent, and what training the evaluated subnets on their own would have taken."""
    spent = total_costs(run)
    charts = []
    for name, title in (("total_macs", "Computation of all clients"), ("total_bytes", "Communication, both ways")):
        if len(spent) and spent[name].iloc[-1] > 0:
            scale, label = axis(name, float(spent[name].max()))
            points = list(zip(spent["round"], spent[name] / scale, strict=True))
            charts.append(line_chart(title, [Series(title, points)], "round", label, zero=True))
    parts: list[Part] = [tag("div", charts, class_="charts")] if charts else []
    if run.ledger and run.ledger.get("independent"):
        rows = [
            [
                *(row.training, short(row.macs), _times(row.times_macs)),
                *(short(row.bytes, "B"), _times(row.times_bytes)),
            ]
            for row in independent_costs(run.ledger).itertuples()
        ]
        text = "Training each subnet on its own with the same cohorts (federated averaging) would take:"
        parts += [tag("p", text), table(["training", "MACs", "× this run", "bytes", "× this run"], rows)]
    return join(parts) if parts else None


def partition(run: Run) -> Html | None:
    """Who has how many examples of which class."""
    if len(run.partition.columns) < 3 or run.partition.empty:
        return None
    return dot_plot(run.partition)


def settings(run: Run) -> Html | None:
    """The whole configuration in groups, folded."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in run.settings.items():
        if name == "model" and isinstance(value, Mapping):
            for part, inner in value.items():
                if isinstance(inner, Mapping):
                    groups[f"model.{part}"] = dict(inner)
                else:
                    groups.setdefault("model", {})[part] = inner
        elif isinstance(value, Mapping):
            groups[name] = dict(value)
        else:
            groups.setdefault("run", {})[name] = value
    drawn = [
        (tag("h3", name), table(["setting", "value"], setting_rows(group), texts=2))
        for name, group in groups.items()
    ]
    return tag("details", tag("summary", "config.yaml"), drawn) if drawn else None


def _clients(run: Run) -> Html | None:
    rows = [
        [
            *(f"{row.client}", f"{row.examples:,}", f"{row.rounds:,}", f"{row.share:.0%}", f"{row.failed:,}"),
            *(_four(row.loss), _four(row.last_loss), short(row.macs), short(row.bytes, "B")),
        ]
        for row in client_table(run).itertuples()
    ]
    if not rows:
        return None
    head = ["client", "examples", "rounds", "of all", "failed", "mean loss", "last loss", "MACs", "bytes"]
    return tag("details", tag("summary", f"All {len(rows)} clients"), table(head, rows))


def _sentence(settings: Mapping[str, Any]) -> str:
    """What was composed, as far as the settings say."""
    model, data = settings.get("model") or {}, settings.get("data") or {}
    trained = _class(model.get("supernet"))
    if trained is None:
        return "Its configuration is not there."
    parts = [_class(model.get(role)) for role in ("assignment", "objective", "aggregation")]
    clients = f"{data['num_clients']:,} clients" if data.get("num_clients") else "clients"
    source = f", data: {_class(data.get('source'))}" if data.get("source") else ""
    return f"{trained}, trained by {clients} with {', '.join(part for part in parts if part)}{source}."


def _class(part: Any) -> str | None:
    path = part.get("class_path") if isinstance(part, Mapping) else None
    return str(path).rsplit(".", 1)[-1] if path else None


def _word(cost: str) -> str:
    return {"macs": "MACs", "parameters": "parameters"}.get(cost, "")


def _four(number: float | None) -> str:
    return "–" if number is None or number != number else f"{number:.4f}"


def _times(number: float) -> str:
    return "–" if number != number else f"{number:.2f}"
