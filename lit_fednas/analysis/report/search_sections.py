"""Sections of a search (fronts per tier, progress, best networks) and of a fine-tuning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pandas as pd

from lit_fednas.analysis.charts import Chart, Charts, line_chart, pareto_figure
from lit_fednas.analysis.comparison import compared
from lit_fednas.analysis.networks import Result, networks_of_weights
from lit_fednas.analysis.runs import Run, SearchResult, by_rounds_done
from lit_fednas.analysis.tables import Bar, Code, Fold, Table, cost_words, repeats
from lit_fednas.formatting import cost_text, short
from lit_fednas.records import ALL_TIERS, COST_NAMES, FinetuneFiles, TierModel
from lit_fednas.records.tiers import flat_front


def comparison(run: Run) -> list[Any]:
    """Compares the best network of each tier with networks that were trained alone; nothing if there are none."""
    val, trainings = f"val_{run.metric}", {name: Result(run, name) for name in run.finetunings}
    methods = {
        f"alone: {name}": [result]
        for name, result in trainings.items()
        if result.trained_alone and run.finetuned(name, "candidates")[val].notna().any()
    }
    if not methods or networks_of_weights(Result(run), run.metric)["val"].isna().all():
        return []
    results = compared({"one supernet": [Result(run)], **methods})
    remarks = [f"Left out: {line}." for line in results.exclusions]
    return [replace(results.tables["compare"], title=""), *remarks, *results.charts()]


def summary(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Returns the method of the search and its costs for clients."""
    if search.evaluations.empty:
        return []
    settings = search.settings
    method = (settings.get("method") or {}).get("class", "A search")
    client = settings.get("client")
    data = "the validation data" if client is None else f"the validation data of client {client}"
    text = f"{method} evaluated {len(search.evaluations):,} architectures on {data}."
    if not settings.get("complete"):
        text += " The search has not ended."
    if isinstance(spent := settings.get("communication"), Mapping):
        down, up = (cost_text(name, spent[name]) for name in ("bytes_down", "bytes_up"))
        text += f" The clients were sent {down}, sent {up}, and computed {short(spent['macs'])} MACs."
    return [text]


def fronts(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Shows a chart per tier: all evaluated architectures, the tier's front, its limits and its best."""
    if search.evaluations.empty:
        return []
    names = [tier for tier in (*tiers, ALL_TIERS) if (search.front["tier"] == tier).any()]
    if names[1:] == [ALL_TIERS]:
        names = names[:1]  # the front of the only tier is that of all
    return [Charts([_front(search, tier, [*tiers, ALL_TIERS].index(tier)) for tier in names])]


def _front(search: SearchResult, tier: str, index: int) -> Chart:
    limit = search.limits(tier)[1]
    bound = "" if limit is None else f", at most {cost_words(search.cost, limit)}"
    title = f"{'All' if tier == ALL_TIERS else tier}{bound}"
    return Chart(title, pareto_figure(search, tier, index))


def progress(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Shows hypervolume and best metric of each tier over evaluations, if there are three generations or more."""
    if search.history["tier"].value_counts().max() < 3 or search.history.empty:
        return []
    charts = []
    titles = {"hypervolume": "Hypervolume", f"best_{search.metric}": f"Best validation {search.metric}"}
    for column, title in titles.items():
        lines = dict(list(search.history.set_index("evaluations").groupby("tier", sort=False)[column]))
        charts.append(line_chart(title, lines, "evaluations", column.replace("_", " "), names=tiers))
    return [Charts(charts)]


def architectures(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Shows the best network of every tier in a table, and each network in one drawing."""
    if search.tiers.empty:
        return []
    best = search.tiers
    costs = [name for name in COST_NAMES if best[name].notna().any()]
    names = ["tier", f"val_{search.metric}", f"test_{search.metric}", *costs, "network"]
    table = Table.of(_with_repeats(best), names)
    remarks = [text] if (text := flat_front(search.settings, best.to_dict("records"))) else []
    best = best.drop_duplicates("arch")
    archs = dict(zip(best["tier"], best["arch"].map(str), strict=True))
    return [*remarks, table, *draw_all(archs, search.models)]


def _with_repeats(tiers: pd.DataFrame) -> pd.DataFrame:
    """Adds a column that names an earlier tier with the same network, if there is one."""
    same_as = repeats(tiers["arch"], tiers["tier"])
    return tiers.assign(network=same_as) if any(same_as) else tiers


def draw_all(archs: Mapping[str, str], models: Mapping[str, TierModel]) -> list[Any]:
    """Returns a drawing of each tier's architecture, all at one scale; without recorded stages, its text alone."""
    stages_of = {tier: models[tier].stages if tier in models else () for tier in archs}
    sizes = [block[1] for stages in stages_of.values() for stage in stages for block in stage if block is not None]
    largest = max(sizes, default=0) or 1
    tables = []
    for tier, arch in archs.items():
        bars = [[_bar(block, largest) for block in stage] for stage in stages_of[tier]]
        head = [f"stage {number}" for number in range(1, len(bars) + 1)]
        drawing = Table(head, list(zip_longest(*bars, fillvalue="")), len(head), tier, [Code(arch)])
        tables.append(drawing if bars else Table(["architecture"], [[Code(arch)]], title=tier))
    note = "A box is a block; its bar is its expand ratio, or its operator's MACs. Dashed boxes are left out."
    return [*([note] if sizes else []), Charts(tables)]


def _bar(block: Sequence[Any] | None, largest: float) -> Bar:
    return Bar(0, "") if block is None else Bar(block[1] / largest, str(block[0]))


#: The function that shows each table of a search, in this order.
SEARCH: Mapping[str, Callable[[SearchResult, Sequence[str]], list[Any]]] = {
    "evaluations": summary,
    "front": fronts,
    "history": progress,
    "tiers": architectures,
}


def tuned(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Shows the metrics, the costs and the training of each tier's network."""
    files = FinetuneFiles(run.folder / name)
    settings, table = files.settings(), run.finetuned(name)
    summary = _finetuning(files, settings)
    if table.empty:
        return [summary]
    metric = settings["metric"]
    lines = {row["tier"]: _curve(run, name, row, metric) for _, row in table.iterrows()}
    blocks = [summary, _trained(_with_repeats(table), settings)]
    if max(map(len, lines.values())) < 3:
        return blocks  # the table has both points
    chart = line_chart(f"Validation {metric} in {_kind(settings)}", lines, "rounds", metric, names=tiers)
    return [*blocks, Charts([chart])]


def candidates(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Lists all networks that were trained, if a tier had several."""
    table = run.finetuned(name, "candidates")
    if table["tier"].is_unique:
        return []
    settings, best = FinetuneFiles(run.folder / name).settings(), run.finetuned(name)
    best_keys = {*zip(best["tier"], best["number"], strict=True)}
    marked = [row for row, key in enumerate(zip(table["tier"], table["number"], strict=True)) if key in best_keys]
    mark = f"The tier's best, by validation {settings['metric']}"
    rows = replace(_trained(table, settings, "number"), marked=marked, mark=mark)
    return [Fold(f"All {len(table)} networks that were trained", [rows])]


def tested(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Lists the test metrics of models over all clients, before and after fine-tuning."""
    table, metric = run.finetuned(name, "models"), FinetuneFiles(run.folder / name).settings()["metric"]
    if table.empty or metric not in table:
        return []
    names = ["arch", "macs_per_example", "clients", "examples", f"{metric}_before", metric]
    return [Table.of(table, names, title="On the test data of all clients")]


def _kind(settings: Mapping[str, Any]) -> str:
    return "training alone" if settings.get("initial") == "random" else "fine-tuning"


def _finetuning(files: FinetuneFiles, settings: Mapping[str, Any]) -> str:
    count = settings.get("architectures")
    starts = {"random": "alone, from scratch", "supernet": "from the supernet's weights"}
    text = f"{count} networks per tier, drawn at random" if count else f"The networks of {settings['search']}"
    text = text if settings.get("models") is None else "The models that were named"
    if settings.get("initial") in starts:
        text += f", trained {starts[settings['initial']]}"
    text += "." if settings.get("complete") else f". The {_kind(settings)} has not ended."
    tau, metric = files.rank_correlation(), settings["metric"]
    return text if tau is None else f"{text} Kendall's tau of validation {metric} before and test {metric}: {tau:.2f}."


def _trained(table: pd.DataFrame, settings: Mapping[str, Any], *more: str) -> Table:
    metric = settings["metric"]
    metrics = [f"val_{metric}_before", f"val_{metric}", f"test_{metric}"]
    metrics = metrics[1:] if settings.get("initial") == "random" else metrics  # the metric of random weights is useless
    costs = ["macs_per_example", "parameters", "bytes", "eligible", "rounds", "macs_in_all", "bytes_down", "bytes_up"]
    table = table.fillna({"eligible": 0, "rounds": 0}).rename(columns={"macs": "macs_in_all"})
    return Table.of(table, ["tier", *more, *metrics, *costs, "network", "arch"])


def _curve(run: Run, name: str, row: pd.Series, metric: str) -> pd.Series:
    """Returns the validation metric by the number of rounds that a network was trained."""
    logged = Run(run.folder / name / "runs" / f"{row['tier']}-{row['number']}").logged_alone(metric)
    ends = {0: row[f"val_{metric}_before"], row["rounds"]: row[f"val_{metric}"]}
    return pd.Series({**by_rounds_done(logged), **ends}, dtype=float).sort_index()


#: The function that shows each table of a fine-tuning, in this order.
FINETUNING: Mapping[str, Callable[[Run, str, Sequence[str]], list[Any]]] = {
    "tiers": tuned,
    "candidates": candidates,
    "models": tested,
}
