"""What a search in a run has to show: fronts per tier, its progress, the architectures found.

Every section returns ``None`` where the run has no search.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from lit_fednas.analysis.report.charts import Mark, Series, front_chart, line_chart
from lit_fednas.analysis.report.drawings import draw_all
from lit_fednas.analysis.report.markup import Html, code, join, table, tag
from lit_fednas.analysis.runs import Run, SearchResult
from lit_fednas.formatting import axis, cost_text
from lit_fednas.records import ALL

_COSTS = {
    "macs": "MACs",
    "parameters": "parameters",
    "bytes": "bytes",
    "activation_bytes": "activations",
    "latency_ms": "latency",
}


def fronts(run: Run) -> Html | None:
    """A chart per tier: all evaluated architectures, the tier's front, its limits and its best."""
    search = run.search()
    if search is None or search.evaluations.empty:
        return None
    tiers = [tier for tier in [*search.tier_names, ALL] if (search.front["tier"] == tier).any()]
    charts = [_front(search, tier, place) for place, tier in enumerate(dict.fromkeys(tiers))]
    ended = "" if search.settings.get("complete") else " The search has not ended."
    text = f"{len(search.evaluations):,} architectures were evaluated on the validation data.{ended}"
    return join(tag("p", text), tag("div", charts, class_="charts"))


def progress(run: Run) -> Html | None:
    """Hypervolume and best accuracy of each tier against evaluations."""
    search = run.search()
    if search is None or search.history.empty:
        return None
    charts = []
    for column, title in (("hypervolume", "Hypervolume"), ("best_accuracy", "Best validation accuracy")):
        lines = [
            Series(str(tier), list(zip(rows["evaluations"], rows[column], strict=True)))
            for tier, rows in search.history.dropna(subset=[column]).groupby("tier", sort=False)
        ]
        charts.append(line_chart(title, lines, "evaluations", column.replace("_", " ")))
    return tag("div", charts, class_="charts")


def architectures(run: Run) -> Html | None:
    """The best of every tier: a table, and each drawn."""
    search = run.search()
    if search is None or search.tiers.empty:
        return None
    best = search.tiers
    known = [name for name in _COSTS if best[name].notna().any()]
    rows = [
        [
            row["tier"],
            *(cost_text(name, row[name]) for name in known),
            *(_four(row[name]) for name in ("val_accuracy", "test_accuracy")),
        ]
        for _, row in best.iterrows()
    ]
    pictures = draw_all([str(arch) for arch in best["arch"]])
    drawn = [
        tag("figure", tag("figcaption", row["tier"]), *dict.fromkeys([picture, tag("p", code(row["arch"]))]))
        for (_, row), picture in zip(best.iterrows(), pictures, strict=True)  # one text where there is no picture
    ]
    note = tag("p", "A box is a block; its bar is as long as its expand ratio, dashed boxes are left out.")
    head = ["tier", *(_COSTS[name] for name in known), "val accuracy", "test accuracy"]
    return join(table(head, rows), note if "stage" in join(pictures) else None, tag("div", drawn, class_="charts"))


def _front(search: SearchResult, tier: str, place: int) -> Html:
    scale, label = axis(search.cost, float(search.evaluations[search.cost].max()))
    rows = search.front[search.front["tier"] == tier].sort_values(search.cost)
    marks = [_mark(search.cost, row, row["accuracy"], scale) for _, row in rows.iterrows()]
    best = search.tiers[search.tiers["tier"] == tier]
    marks += [_mark(search.cost, row, row["val_accuracy"], scale, best=True) for _, row in best.iterrows()]
    points = search.evaluations[[search.cost, "accuracy"]].dropna()
    cloud = list(zip(points[search.cost] / scale, points["accuracy"], strict=True))
    limits = [limit for limit in search.limits(tier) if limit is not None]
    title = ("All" if tier == ALL else tier) + "".join(
        f", at most {cost_text(search.cost, limit)} {_COSTS.get(search.cost, search.cost)}"
        for limit in limits[-1:]
    )
    return front_chart(title, place, cloud, marks, [limit / scale for limit in limits], (label, "accuracy"))


def _mark(cost: str, row: pd.Series[Any], accuracy: float, scale: float, best: bool = False) -> Mark:
    said = [f"best of {row['tier']}"] if best else []
    said += [f"accuracy {accuracy:.4f}, {cost_text(cost, row[cost])} {_COSTS.get(cost, cost)}", str(row["arch"])]
    return Mark(row[cost] / scale, accuracy, "\n".join(said), best)


def _four(number: float) -> str:
    return "–" if number != number else f"{number:.4f}"
