"""What every run has to show: headline, curves, subnets, costs, the clients' data, fairness, settings.

A section returns nothing where the run lacks its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.clients import fairness_table, ordered_scores
from lit_fednas.analysis.report.blocks import Block, Cell, Charts, Code, Fold, Table
from lit_fednas.analysis.report.charts import dot_plot, line_chart
from lit_fednas.analysis.runs import Run, SearchResult
from lit_fednas.analysis.tables import (
    client_table,
    family_costs,
    independent_costs,
    leaves,
    subnet_metric,
    total_costs,
)
from lit_fednas.formatting import axis, cost_text, fixed, short
from lit_fednas.records import ALL_TIERS, CLIENTS_FILE

_COST_WORDS = {"macs": "MACs", "parameters": "parameters"}
_FIRST = ("search", "finetune")


def tiles(run: Run, searches: Sequence[SearchResult]) -> list[tuple[str, str, str]]:
    """Returns the headline's numbers: what each is, its value, and a note.

    Args:
        run: The run.
        searches: Those whose best architectures are named.
    """
    shown = [("rounds", f"{len(run.rounds):,}", "")]
    of_subnets = run.subnets("val").sort_values(run.metric, ascending=run.metrics[run.metric] is not False)
    for _, row in of_subnets.tail(1).iterrows():
        shown.append(("best evaluated subnet", f"{row[run.metric]:.3f}", str(row["subnet"])))
    for search in searches:
        for _, row in search.tiers.iterrows():
            cost = f"{cost_text(search.cost, row[search.cost])} {_COST_WORDS.get(search.cost, '')}"
            shown.append((f"best of {row['tier']}", f"{row[f'val_{search.metric}']:.3f}", cost))
    if run.ledger and run.ledger.get("times_less_computation"):
        times = f"{run.ledger['times_less_computation']:.2f} ×"
        shown.append(("less computation", times, "than the subnets one by one"))
    if len(spent := _epsilon(run)):
        delta = (run.settings.get("privacy") or {}).get("delta", "?")
        shown.append(("epsilon", f"{spent.iloc[-1]:.2f}", f"of a client, at delta {delta}"))
    return shown


def summary(settings: Mapping[str, Any]) -> str:
    """Returns a sentence on what was composed, as far as the settings tell."""
    model, data = settings.get("model") or {}, settings.get("data") or {}
    supernet = _class_name(model.get("supernet"))
    if supernet is None:
        return "The run has no configuration."
    parts = [_class_name(model.get(role)) for role in ("assignment", "objective", "aggregation")]
    clients = f"{data['num_clients']:,} clients" if data.get("num_clients") else "clients"
    source = f", data: {_class_name(data.get('source'))}" if data.get("source") else ""
    return f"{supernet}, trained by {clients} with {', '.join(part for part in parts if part)}{source}."


def training(run: Run) -> list[Block]:
    """Shows the validation metric per subnet, the clients' losses, and a table of the clients."""
    charts = []
    values = subnet_metric(run)
    if values.notna().any(axis=None):
        charts.append(line_chart(f"Validation {run.metric}", values, "round", run.metric))
    losses = run.clients.groupby("round")["loss"].quantile([0.25, 0.5, 0.75]).unstack().dropna()
    if len(losses):
        title = "Loss in the clients' training: median, and half of the clients"
        band = losses[0.25], losses[0.75]
        charts.append(line_chart(title, {"median": losses[0.5]}, "round", "loss", band=band))
    if len(spent := _epsilon(run)):
        charts.append(line_chart("Differential privacy of a client", {"epsilon": spent}, "round", "epsilon", zero=True))
    clients = [
        [
            *(f"{row.client}", f"{row.examples:,}", f"{row.rounds:,}", f"{row.share:.0%}", f"{row.failed:,}"),
            *(fixed(row.loss), fixed(row.last_loss), short(row.macs), short(row.bytes, "B")),
        ]
        for row in client_table(run).itertuples()
    ]
    head = ["client", "examples", "rounds", "of all", "failed", "mean loss", "last loss", "MACs", "bytes"]
    fold = [Fold(f"The {len(clients)} clients that took part", [Table(head, clients)])] if clients else []
    return [Charts(charts), *fold] if charts else []


def subnets(run: Run) -> list[Block]:
    """Shows the evaluated subnets with their costs."""
    splits = {split: run.subnets(split).set_index("subnet") for split in ("val", "test")}
    splits = {split: table for split, table in splits.items() if len(table)}
    if not splits:
        return []
    every = pd.concat(splits.values())
    every = every[~every.index.duplicated()].sort_values("macs")
    rows: list[list[Cell]] = [
        [
            *(str(name), *(cost_text(cost, row[cost]) for cost in ("macs", "parameters", "bytes"))),
            *(fixed(table[value].get(name)) for table in splits.values() for value in run.metrics),
            Code(row["arch"]),
        ]
        for name, row in every.iterrows()
    ]
    head = ["subnet", "MACs", "parameters", "bytes"]
    head += [f"{split} {value}" for split in splits for value in run.metrics]
    return [Table([*head, "architecture"], rows)]


def costs(run: Run) -> list[Block]:
    """Shows what the clients spent, and what training the evaluated subnets on their own would have taken."""
    spent, charts = total_costs(run), []
    for name, title in (("total_macs", "Computation of all clients"), ("total_bytes", "Communication, both ways")):
        if len(spent) and spent[name].iloc[-1] > 0:
            scale, label = axis(name, float(spent[name].max()))
            charts.append(line_chart(title, {title: spent[name] / scale}, "round", label, zero=True))
    blocks: list[Block] = [Charts(charts)] if charts else []
    if run.ledger and run.ledger.get("independent"):
        rows = [
            [
                *(row.training, short(row.macs), fixed(row.times_macs, 2)),
                *(short(row.bytes, "B"), fixed(row.times_bytes, 2)),
            ]
            for row in independent_costs(run.ledger).itertuples()
        ]
        text = "Training each subnet on its own with the same cohorts (federated averaging) would take:"
        blocks += [text, Table(["training", "MACs", "× this run", "bytes", "× this run"], rows)]
        blocks += _family(run.ledger)
    return blocks


def partition(run: Run) -> list[Block]:
    """Shows which client has how many examples of which class."""
    table = run.partition
    return [] if len(table.columns) < 3 or table.empty else [Charts([dot_plot(table)])]


def fairness(run: Run) -> list[Block]:
    """Shows how much the clients of the run, and of every search and fine-tuning, differ (FedorAS, section 4.4)."""
    names = sorted((path.parent.name for path in run.folder.glob(f"*/{CLIENTS_FILE}")), key=_order)
    groups = {name: [run.folder / name] for name in names}
    if (run.folder / CLIENTS_FILE).exists():
        groups = {"run": [run.folder], **groups}
    if not groups:
        return []
    rows = [
        [
            *(row["name"], "all" if row["tier"] == ALL_TIERS else row["tier"], f"{row['clients']:,.0f}"),
            *(fixed(row[value]) for value in ("mean", "deviation", "iqr", "worst")),
        ]
        for _, row in fairness_table(groups).iterrows()
    ]
    by_name = ordered_scores(groups).set_index("rank").groupby("name", sort=False)["mean"]
    head = ["folder", "tier", "clients", f"mean {run.metric}", "deviation", "interquartile range", "worst"]
    return [
        f"Each client's {run.metric} on its own test data, with the network of its tier (of the run: what it deploys).",
        Table(head, rows, texts=2),
        Charts([line_chart(f"Clients by {run.metric}", dict(list(by_name)), "client", run.metric)]),
    ]


def settings(run: Run) -> list[Block]:
    """Shows the whole configuration in groups, folded."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, value in leaves(run.settings):
        words = name.split(".")
        depth = min(len(words) - 1, 2 if words[0] == "model" else 1)
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        groups.setdefault(".".join(words[:depth]) or "run", []).append((".".join(words[depth:]), text))
    tables = [Table(["setting", "value"], rows, 2, name) for name, rows in groups.items()]
    return [Fold("config.yaml", tables)] if tables else []


def _family(ledger: Mapping[str, Any]) -> list[Block]:
    """Draws what it takes to train the subnets one by one, where there are several."""
    family = family_costs(ledger)
    if len(family) < 2:
        return []
    this = pd.Series(1.0, family.index)
    titles = {"times_macs": "Computation of a family", "times_bytes": "Communication of a family"}
    lines = {name: {"one by one": family[name], "this run": this} for name in titles}
    return [Charts([line_chart(titles[name], lines[name], "subnets", "× this run", zero=True) for name in titles])]


def _epsilon(run: Run) -> pd.Series:
    """Returns the privacy that a client has spent, by round; nothing without noise."""
    if "privacy/epsilon" not in run.rounds:
        return pd.Series(dtype=float)
    return run.rounds.set_index("round")["privacy/epsilon"].dropna()


def _class_name(part: Any) -> str | None:
    path = part.get("class_path") if isinstance(part, Mapping) else None
    return str(path).rsplit(".", 1)[-1] if path else None


def _order(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)
