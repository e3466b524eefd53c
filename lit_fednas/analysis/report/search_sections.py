"""What a search in a run has to show: fronts per tier, its progress, the architectures found.

A part without its file is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.report.blocks import Bar, Block, Chart, Charts, Stages, Table
from lit_fednas.analysis.report.charts import Mark, front_chart, line_chart
from lit_fednas.analysis.runs import SearchResult
from lit_fednas.formatting import axis, cost_text, fixed, short
from lit_fednas.records import ALL_TIERS, TierModel

COST_WORDS = {
    "macs": "MACs",
    "parameters": "parameters",
    "bytes": "bytes",
    "activation_bytes": "activations",
    "latency_ms": "latency",
}


def summary(search: SearchResult, tiers: Sequence[str]) -> list[Block]:
    """Returns how the architectures were found, and what that cost clients."""
    if search.evaluations.empty:
        return []
    settings = search.settings
    method = (settings.get("method") or {}).get("class", "A search")
    client = settings.get("client")
    data = "the validation data" if client is None else f"the validation data of client {client}"
    ended = "" if settings.get("complete") else " The search has not ended."
    return [f"{method} evaluated {len(search.evaluations):,} architectures on {data}.{ended}{_spent(settings)}"]


def fronts(search: SearchResult, tiers: Sequence[str]) -> list[Block]:
    """Shows a chart per tier: all evaluated architectures, the tier's front, its limits and its best."""
    if search.evaluations.empty:
        return []
    shown = [tier for tier in (*tiers, ALL_TIERS) if (search.front["tier"] == tier).any()]
    if shown[1:] == [ALL_TIERS]:
        shown = shown[:1]  # of one tier, both are the same
    return [Charts([_front(search, tier, [*tiers, ALL_TIERS].index(tier)) for tier in shown])]


def progress(search: SearchResult, tiers: Sequence[str]) -> list[Block]:
    """Shows hypervolume and best metric of each tier against evaluations, if there were several generations."""
    if not search.history["tier"].duplicated().any():
        return []
    charts = []
    best = f"best_{search.metric}", f"Best validation {search.metric}"
    for column, title in (("hypervolume", "Hypervolume"), best):
        lines = dict(list(search.history.set_index("evaluations").groupby("tier", sort=False)[column]))
        charts.append(line_chart(title, lines, "evaluations", column.replace("_", " "), names=tiers))
    return [Charts(charts)]


def architectures(search: SearchResult, tiers: Sequence[str]) -> list[Block]:
    """Shows the best of every tier: a table, and each drawn."""
    if search.tiers.empty:
        return []
    best = search.tiers
    known = [name for name in COST_WORDS if best[name].notna().any()]
    rows = [
        [
            row["tier"],
            *(cost_text(name, row[name]) for name in known),
            *(fixed(row[name]) for name in (f"val_{search.metric}", f"test_{search.metric}")),
        ]
        for _, row in best.iterrows()
    ]
    head = ["tier", *(COST_WORDS[name] for name in known), f"val {search.metric}", f"test {search.metric}"]
    return [Table(head, rows), *draw_all(dict(zip(best["tier"], best["arch"].map(str), strict=True)), search.models)]


#: What each table of a search is shown as, in this order.
PARTS: Sequence[tuple[str, Callable[[SearchResult, Sequence[str]], list[Block]]]] = (
    ("evaluations", summary),
    ("front", fronts),
    ("history", progress),
    ("tiers", architectures),
)


def draw_all(archs: Mapping[str, str], models: Mapping[str, TierModel]) -> list[Block]:
    """Returns a drawing of each tier's architecture, all to the same measure.

    Args:
        archs: Their texts by tier.
        models: The tiers' files. An architecture without recorded stages is shown as text alone.
    """
    stages = {tier: models[tier].stages if tier in models else () for tier in archs}
    sizes = [block[1] for one in stages.values() for stage in one for block in stage if block is not None]
    most = max(sizes, default=0) or 1
    drawings = [
        Stages(tier, arch, [[_bar(block, most) for block in one] for one in stages[tier]])
        for tier, arch in archs.items()
    ]
    note = "A box is a block; its bar is its expand ratio, or its operator's MACs. Dashed boxes are left out."
    return [*([note] if sizes else []), Charts(drawings)]


def _bar(block: Sequence[Any] | None, most: float) -> Bar | None:
    return None if block is None else Bar(block[1] / most, str(block[0]))


def _spent(settings: Mapping[str, object]) -> str:
    spent = settings.get("communication")
    if not isinstance(spent, Mapping):
        return ""
    down, up = short(spent["bytes_down"], "B"), short(spent["bytes_up"], "B")
    return f" The clients were sent {down}, sent {up}, and computed {short(spent['macs'])} MACs."


def _front(search: SearchResult, tier: str, index: int) -> Chart:
    scale, label = axis(search.cost, float(search.evaluations[search.cost].max()))
    rows = search.front[search.front["tier"] == tier].sort_values(search.cost)
    front = [_mark(search, row, row[search.metric], scale) for _, row in rows.iterrows()]
    tiers = search.tiers[search.tiers["tier"] == tier]
    best = [_mark(search, row, row[f"val_{search.metric}"], scale, best=True) for _, row in tiers.iterrows()]
    points = search.evaluations[[search.cost, search.metric]].dropna()
    cloud = points.set_index(points[search.cost] / scale)[search.metric]
    limits = [limit for limit in search.limits(tier) if limit is not None]
    cost = COST_WORDS.get(search.cost, search.cost)
    bounds = [f", at most {cost_text(search.cost, limit)} {cost}" for limit in limits[-1:]]
    title = "".join(["All" if tier == ALL_TIERS else tier, *bounds])
    return front_chart(title, index, cloud, front, best, [limit / scale for limit in limits], (label, search.metric))


def _mark(search: SearchResult, row: pd.Series, value: float, scale: float, best: bool = False) -> Mark:
    cost = search.cost
    lines = [f"best of {row['tier']}"] if best else []
    lines += [
        f"{search.metric} {value:.4f}, {cost_text(cost, row[cost])} {COST_WORDS.get(cost, cost)}",
        str(row["arch"]),
    ]
    return Mark(row[cost] / scale, value, "\n".join(lines))
