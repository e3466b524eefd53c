"""What a search in a run has to show: fronts per tier, its progress, the architectures found.

A section returns nothing where the run has no search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pandas as pd

from lit_fednas.analysis.report.charts import (
    Bar,
    Block,
    Chart,
    Charts,
    Mark,
    Stages,
    Table,
    front_chart,
    line_chart,
)
from lit_fednas.analysis.runs import Run, SearchResult
from lit_fednas.formatting import axis, cost_text, fixed
from lit_fednas.records import ALL_TIERS

_COSTS = {
    "macs": "MACs",
    "parameters": "parameters",
    "bytes": "bytes",
    "activation_bytes": "activations",
    "latency_ms": "latency",
}


def fronts(run: Run) -> list[Block]:
    """Shows a chart per tier: all evaluated architectures, the tier's front, its limits and its best."""
    search = run.search()
    if search is None or search.evaluations.empty:
        return []
    tiers = [tier for tier in [*search.tier_names, ALL_TIERS] if (search.front["tier"] == tier).any()]
    charts = [_front(search, tier, index) for index, tier in enumerate(dict.fromkeys(tiers))]
    ended = "" if search.settings.get("complete") else " The search has not ended."
    text = f"{len(search.evaluations):,} architectures were evaluated on the validation data.{ended}"
    return [text, Charts(charts)]


def progress(run: Run) -> list[Block]:
    """Shows hypervolume and best metric of each tier against evaluations."""
    search = run.search()
    if search is None or search.history.empty:
        return []
    charts = []
    best = f"best_{search.metric}", f"Best validation {search.metric}"
    for column, title in (("hypervolume", "Hypervolume"), best):
        lines = dict(list(search.history.set_index("evaluations").groupby("tier", sort=False)[column]))
        charts.append(line_chart(title, lines, "evaluations", column.replace("_", " ")))
    return [Charts(charts)]


def architectures(run: Run) -> list[Block]:
    """Shows the best of every tier: a table, and each drawn."""
    search = run.search()
    if search is None or search.tiers.empty:
        return []
    best = search.tiers
    known = [name for name in _COSTS if best[name].notna().any()]
    rows = [
        [
            row["tier"],
            *(cost_text(name, row[name]) for name in known),
            *(fixed(row[name]) for name in (f"val_{search.metric}", f"test_{search.metric}")),
        ]
        for _, row in best.iterrows()
    ]
    drawings = draw_all(list(best["tier"]), [str(arch) for arch in best["arch"]])
    head = ["tier", *(_COSTS[name] for name in known), f"val {search.metric}", f"test {search.metric}"]
    note = "A box is a block; its bar is as long as its expand ratio, dashed boxes are left out."
    notes = [note] if any(drawing.stages for drawing in drawings) else []
    return [Table(head, rows), *notes, Charts(drawings)]


def read_stages(arch: str) -> tuple[list[list[float]], int] | None:
    """Reads the depths and ratios of an elastic network's text.

    Returns:
        Per stage, the expand ratios of its blocks, and the most blocks that a stage can have, as far as the text
        says; ``None`` where it is written otherwise.

    Example:
        >>> read_stages("d: [0,1], e: [0.1,0.1,0.25,0.14]")
        ([[0.1], [0.25, 0.14]], 2)
        >>> read_stages("d: [0,2], e: 0.1")
        ([[0.1], [0.1, 0.1, 0.1]], 3)
        >>> read_stages("conv3x3-skip") is None
        True
    """
    match = re.fullmatch(r"\s*d:\s*(\[[\d,\s]+\])\s*,\s*e:\s*(\[[\d.,\seE+-]+\]|[\d.eE+-]+)\s*", arch)
    try:
        depths, ratios = (json.loads(match[1]), json.loads(match[2])) if match else (None, None)
    except ValueError:
        return None
    if not depths or ratios is None:
        return None
    if not isinstance(ratios, list):
        return [[ratios] * (1 + depth) for depth in depths], 1 + max(depths)
    blocks, left = divmod(len(ratios), len(depths))
    if left or blocks <= max(depths):
        return None
    return [ratios[blocks * stage : blocks * stage + 1 + depth] for stage, depth in enumerate(depths)], blocks


def draw_all(titles: Sequence[str], archs: Sequence[str]) -> list[Stages]:
    """Returns a drawing of each architecture, all to the same measure; without stages where it cannot be read."""
    read = [read_stages(arch) or ([], 0) for arch in archs]
    widest = max((ratio for stages, _ in read for stage in stages for ratio in stage), default=1.0) or 1.0
    most = max(blocks for _, blocks in read)
    return [
        Stages(
            title,
            arch,
            [([Bar(ratio / widest, f"{ratio:g}") for ratio in stage], most - len(stage)) for stage in stages],
        )
        for title, arch, (stages, _) in zip(titles, archs, read, strict=True)
    ]


def _front(search: SearchResult, tier: str, index: int) -> Chart:
    scale, label = axis(search.cost, float(search.evaluations[search.cost].max()))
    rows = search.front[search.front["tier"] == tier].sort_values(search.cost)
    front = [_mark(search, row, row[search.metric], scale) for _, row in rows.iterrows()]
    tiers = search.tiers[search.tiers["tier"] == tier]
    best = [_mark(search, row, row[f"val_{search.metric}"], scale, best=True) for _, row in tiers.iterrows()]
    points = search.evaluations[[search.cost, search.metric]].dropna()
    cloud = points.set_index(points[search.cost] / scale)[search.metric]
    limits = [limit for limit in search.limits(tier) if limit is not None]
    cost = _COSTS.get(search.cost, search.cost)
    bounds = [f", at most {cost_text(search.cost, limit)} {cost}" for limit in limits[-1:]]
    title = "".join(["All" if tier == ALL_TIERS else tier, *bounds])
    return front_chart(title, index, cloud, front, best, [limit / scale for limit in limits], (label, search.metric))


def _mark(search: SearchResult, row: pd.Series, value: float, scale: float, best: bool = False) -> Mark:
    cost = search.cost
    lines = [f"best of {row['tier']}"] if best else []
    lines += [f"{search.metric} {value:.4f}, {cost_text(cost, row[cost])} {_COSTS.get(cost, cost)}", str(row["arch"])]
    return Mark(row[cost] / scale, value, "\n".join(lines))
