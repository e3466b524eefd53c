"""Tables of methods as text: a row per method and tier, means with the lowest and highest over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from lit_fednas.analysis.tables import cost_range
from lit_fednas.formatting import short, spread, text_table
from lit_fednas.records import ALL_TIERS

_DASH = "–"
_SPENT = {"spent_macs": "", "spent_bytes": "B"}


def comparison_text(table: pd.DataFrame, markdown: bool = False) -> str:
    """Returns a :func:`~lit_fednas.comparison.comparison_table` as text, and what is missing in it below.

    Args:
        table: The table; accuracies are written in percent.
        markdown: Whether as a table of Markdown.
    """
    metric = table.attrs["metric"]
    scale, percent = scale_of(metric)
    head = ["tier", "method", "seeds", "MACs", "size", f"val {metric}{percent}", f"test {metric}{percent}"]
    head += ["rounds", "training MACs", "training bytes"]
    body = []
    for (tier, method), every in table.groupby(["tier", "method"], sort=False):
        rows = every.dropna(subset=["arch"])
        cells = [cost_range(rows["macs"], short), cost_range(rows["bytes"], partial(short, unit="B"))]
        cells += [_spread(rows[split], scale) for split in ("val", "test")]
        cells += [_rounds(rows["rounds"])]
        cells += [cost_range(rows[name], partial(short, unit=unit)) for name, unit in _SPENT.items()]
        body.append([_named(tier), str(method), _seeds(rows, every), *cells])
    lines = [text_table(head, body, left=2, markdown=markdown)]
    if missing := _names(table[table["arch"].isna()]):
        lines.append(f"No network within the tier: {missing}.")
    if 0 < table["test"].notna().sum() < table["arch"].notna().sum():
        untested = _names(table[table["test"].isna() & table["arch"].notna()])
        lines.append(f"Not tested ('lit-fednas search' with these tiers tests them): {untested}.")
    return "\n\n".join(lines)


def target_text(table: pd.DataFrame, markdown: bool = False) -> str:
    """Returns a :func:`~lit_fednas.comparison.target_table` as text.

    ``>`` marks what has not sufficed: the mean is a lower bound as soon as one seed has not reached the target.
    """
    metric = table.attrs["metric"]
    scale, percent = scale_of(metric)
    head = ["tier", f"{metric}{percent}", "method", "reached", "rounds", "training MACs", "training bytes"]
    body = []
    for (tier, target, method), every in table.groupby(["tier", "target", "method"], sort=False):
        rows = every.dropna(subset=["rounds"])
        reached = f"{int(every['reached'].sum())} of {len(every)}"
        bound = "" if rows["reached"].all() else "> "
        cells = [_rounds(rows["rounds"])]
        cells += [cost_range(rows[name], partial(short, unit=unit)) for name, unit in _SPENT.items()]
        cells = [cell if cell == _DASH else f"{bound}{cell}" for cell in cells]
        body.append([_named(tier), f"{scale * float(target):g}", str(method), reached, *cells])
    return text_table(head, body, left=1, markdown=markdown)


def client_text(table: pd.DataFrame, markdown: bool = False) -> str:
    """Returns a :func:`~lit_fednas.comparison.client_table` as text, of all clients of a method together."""
    metric = table.attrs["metric"]
    scale, unit = scale_of(metric)
    head = ["method", "seeds", "clients", f"mean {metric}{unit}", "deviation", "worst", "interquartile range"]
    body = []
    for row in table[table["tier"] == ALL_TIERS].to_dict("records"):
        figures = [f"{scale * row[name]:.2f}" for name in ("mean", "deviation", "worst", "iqr")]
        body.append([str(row["name"]), str(row["runs"]), f"{row['clients']:g}", *figures])
    return text_table(head, body, markdown=markdown)


def scale_of(metric: str) -> tuple[float, str]:
    """Returns what values of a metric are multiplied by to be shown, and the unit behind its name."""
    return (100.0, " (%)") if metric == "accuracy" else (1.0, "")


def _named(tier: Any) -> str:
    return "any" if tier == ALL_TIERS else str(tier)


def _seeds(rows: pd.DataFrame, every: pd.DataFrame) -> str:
    return str(len(rows)) if len(rows) == len(every) else f"{len(rows)} of {len(every)}"


def _spread(values: pd.Series, scale: float) -> str:
    """Returns a mean and its range; a dash unless all rows have a value."""
    return _DASH if values.isna().any() else spread(values, digits=2, scale=scale)


def _rounds(rounds: pd.Series) -> str:
    return cost_range(rounds, lambda number: f"{number:.1f}".removesuffix(".0"))


def _names(rows: pd.DataFrame) -> str:
    """Returns the tiers of each method, in a few words."""
    groups = rows.groupby("method", sort=False)["tier"]
    named: Sequence[str] = [f"{method} ({', '.join(map(_named, dict.fromkeys(tiers)))})" for method, tiers in groups]
    return ", ".join(named)
