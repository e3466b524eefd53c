"""What a search has to show (fronts per tier, progress, the networks found), and a fine-tuning of such networks.

A part whose table is missing is left out.
"""

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
    """Shows the best network of each tier beside those that were trained alone; nothing where there are none."""
    val, trainings = f"val_{run.metric}", {name: Result(run, name) for name in run.finetunings}
    methods = {
        f"alone: {name}": [result]
        for name, result in trainings.items()
        if result.trained_alone and run.finetuned(name, "candidates")[val].notna().any()
    }
    if not methods or networks_of_weights(Result(run), run.metric)["val"].isna().all():
        return []
    results = compared({"one supernet": [Result(run)], **methods})
    remarks = [f"Left out: {line}." for line in results.left_out]
    return [replace(results.tables["compare"], title=""), *remarks, *results.charts()]


def summary(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Returns how the architectures were found, and what that cost clients."""
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
    shown = [tier for tier in (*tiers, ALL_TIERS) if (search.front["tier"] == tier).any()]
    if shown[1:] == [ALL_TIERS]:
        shown = shown[:1]  # of one tier, both are the same
    return [Charts([_front(search, tier, [*tiers, ALL_TIERS].index(tier)) for tier in shown])]


def _front(search: SearchResult, tier: str, index: int) -> Chart:
    limit = search.limits(tier)[1]
    bound = "" if limit is None else f", at most {cost_words(search.cost, limit)}"
    title = f"{'All' if tier == ALL_TIERS else tier}{bound}"
    return Chart(title, pareto_figure(search, tier, index))


def progress(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Shows hypervolume and best metric of each tier against evaluations, of three generations or more."""
    if search.history["tier"].value_counts().max() < 3 or search.history.empty:
        return []
    charts = []
    titles = {"hypervolume": "Hypervolume", f"best_{search.metric}": f"Best validation {search.metric}"}
    for column, title in titles.items():
        lines = dict(list(search.history.set_index("evaluations").groupby("tier", sort=False)[column]))
        charts.append(line_chart(title, lines, "evaluations", column.replace("_", " "), names=tiers))
    return [Charts(charts)]


def architectures(search: SearchResult, tiers: Sequence[str]) -> list[Any]:
    """Shows the best of every tier: a table, and each network drawn once."""
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
    """Returns a table with a column that names the earlier tier of the same network, where one has one."""
    again = repeats(tiers["arch"], tiers["tier"])
    return tiers.assign(network=again) if any(again) else tiers


def draw_all(archs: Mapping[str, str], models: Mapping[str, TierModel]) -> list[Any]:
    """Returns a drawing of each tier's architecture, all to the same measure; text alone without recorded stages."""
    stages = {tier: models[tier].stages if tier in models else () for tier in archs}
    sizes = [block[1] for drawn in stages.values() for stage in drawn for block in stage if block is not None]
    most = max(sizes, default=0) or 1
    tables = []
    for tier, arch in archs.items():
        bars = [[_bar(block, most) for block in stage] for stage in stages[tier]]
        head = [f"stage {number}" for number in range(1, len(bars) + 1)]
        drawn = Table(head, list(zip_longest(*bars, fillvalue="")), len(head), tier, [Code(arch)])
        tables.append(drawn if bars else Table(["architecture"], [[Code(arch)]], title=tier))
    note = "A box is a block; its bar is its expand ratio, or its operator's MACs. Dashed boxes are left out."
    return [*([note] if sizes else []), Charts(tables)]


def _bar(block: Sequence[Any] | None, most: float) -> Bar:
    return Bar(0, "") if block is None else Bar(block[1] / most, str(block[0]))


#: What each table of a search is shown as, in this order.
SEARCH: Mapping[str, Callable[[SearchResult, Sequence[str]], list[Any]]] = {
    "evaluations": summary,
    "front": fronts,
    "history": progress,
    "tiers": architectures,
}


def tuned(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Shows each tier's network: its costs, its clients, metrics before and after, and what its training cost."""
    files = FinetuneFiles(run.folder / name)
    settings, table = files.settings(), run.finetuned(name)
    summary = _finetuning(files, settings)
    if table.empty:
        return [summary]
    metric = settings["metric"]
    lines = {row["tier"]: _curve(run, name, row, metric) for _, row in table.iterrows()}
    shown = [summary, _trained(_with_repeats(table), settings)]
    if max(map(len, lines.values())) < 3:
        return shown  # the table has both
    chart = line_chart(f"Validation {metric} in {_kind(settings)}", lines, "rounds", metric, names=tiers)
    return [*shown, Charts([chart])]


def candidates(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Lists all networks that were trained, where a tier had several."""
    table = run.finetuned(name, "candidates")
    if table["tier"].is_unique:
        return []
    settings, best = FinetuneFiles(run.folder / name).settings(), run.finetuned(name)
    chosen = {*zip(best["tier"], best["number"], strict=True)}
    marked = [place for place, key in enumerate(zip(table["tier"], table["number"], strict=True)) if key in chosen]
    mark = f"The tier's best, by validation {settings['metric']}"
    shown = replace(_trained(table, settings, "number"), marked=marked, mark=mark)
    return [Fold(f"All {len(table)} networks that were trained", [shown])]


def tested(run: Run, name: str, tiers: Sequence[str]) -> list[Any]:
    """Lists the models that all clients tested, before and after fine-tuning."""
    table, metric = run.finetuned(name, "models"), FinetuneFiles(run.folder / name).settings()["metric"]
    if table.empty or metric not in table:
        return []
    names = ["arch", "macs_per_example", "clients", "examples", f"{metric}_before", metric]
    return [Table.of(table, names, title="On the test data of all clients")]


def _kind(settings: Mapping[str, Any]) -> str:
    return "training alone" if settings.get("initial") == "random" else "fine-tuning"


def _finetuning(files: FinetuneFiles, settings: Mapping[str, Any]) -> str:
    drawn, start = (
        settings.get("architectures"),
        {"random": "alone, from scratch", "supernet": "from the supernet's weights"},
    )
    text = f"{drawn} networks per tier, drawn at random" if drawn else f"The networks of {settings['search']}"
    text = text if settings.get("models") is None else "The models that were named"
    if settings.get("initial") in start:
        text += f", trained {start[settings['initial']]}"
    text += "." if settings.get("complete") else f". The {_kind(settings)} has not ended."
    tau, metric = files.rank_correlation(), settings["metric"]
    return text if tau is None else f"{text} Kendall's tau of validation {metric} before and test {metric}: {tau:.2f}."


def _trained(table: pd.DataFrame, settings: Mapping[str, Any], *more: str) -> Table:
    metric = settings["metric"]
    rated = [f"val_{metric}_before", f"val_{metric}", f"test_{metric}"]
    rated = rated[1:] if settings.get("initial") == "random" else rated  # random weights have no accuracy of interest
    costs = ["macs_per_example", "parameters", "bytes", "eligible", "rounds", "macs_in_all", "bytes_down", "bytes_up"]
    table = table.fillna({"eligible": 0, "rounds": 0}).rename(columns={"macs": "macs_in_all"})
    return Table.of(table, ["tier", *more, *rated, *costs, "network", "arch"])


def _curve(run: Run, name: str, row: pd.Series, metric: str) -> pd.Series:
    """Returns the validation metric by the number of rounds that a network was trained."""
    known = Run(run.folder / name / "runs" / f"{row['tier']}-{row['number']}").logged_alone(metric)
    ends = {0: row[f"val_{metric}_before"], row["rounds"]: row[f"val_{metric}"]}
    return pd.Series({**by_rounds_done(known), **ends}, dtype=float).sort_index()


#: What each table of a fine-tuning is shown as, in this order.
FINETUNING: Mapping[str, Callable[[Run, str, Sequence[str]], list[Any]]] = {
    "tiers": tuned,
    "candidates": candidates,
    "models": tested,
}
