"""Sections of every run: headline, curves, subnets, costs, the clients' data, fairness, settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lit_fednas.analysis.charts import Chart, Charts, line_chart, say_columns
from lit_fednas.analysis.clients import fairness_chart, fairness_rows, fairness_table
from lit_fednas.analysis.runs import Run, SearchResult, by_rounds_done, independent_costs
from lit_fednas.analysis.tables import COSTS, Fold, Table, cost_words, repeats
from lit_fednas.config_files import flat
from lit_fednas.formatting import axis, metric_text
from lit_fednas.records.partition import plot_partition
from lit_fednas.records.run import CLIENTS_FILE


def tiles(run: Run, searches: Sequence[SearchResult]) -> list[tuple[str, str, str]]:
    """Returns the numbers of the headline with names and notes; of networks, the best by validation data."""
    numbers = [("rounds", f"{len(run.rounds):,}", "")]
    of_subnets = run.subnets("val").sort_values(run.metric, ascending=run.metrics[run.metric] is not False)
    tested = run.subnets("test").set_index("subnet")[run.metric]
    for _, row in of_subnets.tail(1).iterrows():
        name = str(row["subnet"])
        numbers.append(_headline("best evaluated subnet", tested.get(name), row[run.metric], run.metric, name))
    for search in searches[:1]:
        metric, higher = search.metric, search.settings["metrics"][search.metric]
        tables = [other.tiers for other in searches if (other.metric, other.cost) == (metric, search.cost)]
        best = pd.concat(tables).sort_values(f"val_{metric}", ascending=higher is False, kind="stable")
        best = best.drop_duplicates("tier").set_index("tier", drop=False).reindex(search.tiers["tier"])
        for (_, row), same in zip(best.iterrows(), repeats(best["arch"], best["tier"]), strict=True):
            cost = cost_words(search.cost, row[search.cost])
            values = row.get(f"test_{metric}"), row[f"val_{metric}"]
            numbers.append(_headline(f"best of {row['tier']}", *values, metric, same or cost))
    if len(spent := run.logged("privacy/epsilon")):
        delta = (run.settings.get("privacy") or {}).get("delta", "?")
        numbers.append(("epsilon", f"{spent.iloc[-1]:.2f}", f"of a client, at delta {delta}"))
    return numbers


def _headline(title: str, test: Any, val: float, metric: str, note: str) -> tuple[str, str, str]:
    """Returns the test metric of a network as a number of the headline, or else its validation metric."""
    value, split = (val, "validation") if pd.isna(test) else (test, "test")
    return title, metric_text(metric, value, "%"), f"{split} {metric}, {note}"


def summary(settings: Mapping[str, Any]) -> str:
    """Returns a sentence on the composition of the run, from its settings."""
    model, data = settings.get("model") or {}, settings.get("data") or {}
    supernet = class_name(model.get("supernet"))
    if supernet is None:
        return "The run has no configuration."
    parts = [class_name(model.get(role)) for role in ("assignment", "objective", "aggregation")]
    clients = f"{data['num_clients']:,} clients" if data.get("num_clients") else "clients"
    source = f", data: {class_name(data.get('source'))}" if data.get("source") else ""
    return f"{supernet}, trained by {clients} with {', '.join(part for part in parts if part)}{source}."


def training(run: Run) -> list[Any]:
    """Shows the validation metric per subnet and the clients' losses."""
    charts = []
    values = by_rounds_done(run.rounds.set_index("round")).filter(regex=f"^val/(?!mean/).*/{run.metric}$")
    values = values.rename(columns=lambda name: name.removeprefix("val/").removesuffix(f"/{run.metric}"))
    if values.notna().any(axis=None):
        charts.append(line_chart(f"Validation {run.metric}", values, "rounds", run.metric))
    losses = by_rounds_done(run.clients.groupby("round")["loss"].quantile([0.25, 0.5, 0.75]).unstack().dropna())
    if len(losses):
        title = "Loss in the clients' training: median, and half of the clients"
        line = losses.set_axis(["min", "mean", "max"], axis=1)
        charts.append(line_chart(title, {"median": line}, "rounds", "loss"))
    if len(spent := run.logged("privacy/epsilon")):
        lines = {"epsilon": by_rounds_done(spent)}
        charts.append(line_chart("Differential privacy of a client", lines, "rounds", "epsilon", zero=True))
    return [Charts(charts)] if charts else []


def subnets(run: Run) -> list[Any]:
    """Shows the evaluated subnets with their costs."""
    tables = {split: run.subnets(split).set_index("subnet") for split in ("val", "test")}
    splits = {split: table[list(run.metrics)].add_prefix(f"{split}_") for split, table in tables.items() if len(table)}
    if not splits:
        return []
    table = tables["val"].combine_first(tables["test"])[["arch", *COSTS]].join(list(splits.values()))
    table = table.sort_values("macs").reset_index()
    names = ["subnet", *(name for part in splits.values() for name in part), *COSTS, "arch"]
    split = next(iter(splits))
    best = table[f"{split}_{run.metric}"].rank(ascending=run.metrics[run.metric] is False, method="min") == 1
    mark = f"The best, by {split} {run.metric}"
    return [Table.of(table, names, marked=[*best.to_numpy().nonzero()[0]] if len(table) > 1 else (), mark=mark)]


def costs(run: Run) -> list[Any]:
    """Shows the costs of all clients, and the costs of training each evaluated subnet alone."""
    charts = []
    for name, title in (("spent_macs", "Computation of all clients"), ("spent_bytes", "Communication, both ways")):
        spent = by_rounds_done(run.spent[name])
        if spent.max() > 0:
            scale, label = axis(name, float(spent.max()))
            charts.append(line_chart(title, {title: spent / scale}, "rounds", label, zero=True))
    blocks: list[Any] = [Charts(charts)] if charts else []
    if run.ledger and run.ledger.get("independent"):
        table = independent_costs(run.ledger)
        times = {"times_macs": "× MACs of this run", "times_bytes": "× bytes of this run"}
        table[[*times]] = table[[*times]].map("{:.2f}".format, na_action="ignore")
        names = ["training", "macs", times["times_macs"], "bytes", times["times_bytes"]]
        text = "Training each subnet on its own for as many rounds (federated averaging, the same cohorts) would take:"
        blocks += [text, Table.of(table.rename(columns=times), names)]
    return blocks


def partition(run: Run) -> list[Any]:
    """Shows the number of examples per client and class."""
    table = run.partition
    owners = list(table["owner"].astype(str)) if list(table.columns[1:3]) == ["owner", "size"] else []
    classes = list(table.columns[3 if owners else 2 :])
    if not classes or table.empty:
        return []
    counts = table[classes].to_numpy(dtype=int)
    figure = plot_partition(counts, classes, owners)
    if not figure.axes[0].get_title():  # a title says that clients or classes are left out
        rows = table.set_index("client")[classes].astype(int).iterrows()
        texts = [
            [f"client {client} {owner}".rstrip(), *(f"{name}: {number:,}" for name, number in row.items() if number)]
            for (client, row), owner in zip(rows, owners or [""] * len(table), strict=True)
        ]
        say_columns(figure.axes[0], dict(enumerate(map("\n".join, texts))))
    return [Charts([Chart(f"Examples of {len(table):,} clients, by class", figure)])]


def fairness(run: Run) -> list[Any]:
    """Shows how much the clients of the run, and of every search and fine-tuning, differ (FedorAS, section 4.4)."""
    names = [path.parent.name for path in run.folder.glob(f"*/{CLIENTS_FILE}")]
    names.sort(key=lambda name: (name != "search", name != "finetune", name))
    groups = {name: [run.folder / name] for name in names}
    if (run.folder / CLIENTS_FILE).exists():
        groups = {"run": [run.folder], **groups}
    if not groups:
        return []
    return [
        f"Each client's {run.metric} on its own test data, with the network that its tier or the run deploys.",
        replace(fairness_rows(fairness_table(groups), "folder", "tier"), num_texts=2),
        Charts([fairness_chart(groups)]),
    ]


def settings(run: Run) -> list[Any]:
    """Shows the whole configuration in groups, folded."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, value in flat(run.settings):
        words = name.split(".")
        depth = min(len(words) - 1, 2 if words[0] == "model" else 1)
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        groups.setdefault(".".join(words[:depth]) or "run", []).append((".".join(words[depth:]), text))
    tables = [Table(["setting", "value"], rows, 2, name) for name, rows in groups.items()]
    return [Fold("config.yaml", tables)] if tables else []


def class_name(part: Any) -> str | None:
    """Returns the class of a part of the settings, without its module."""
    path = part.get("class_path") if isinstance(part, Mapping) else None
    return str(path).rsplit(".", 1)[-1] if path else None
