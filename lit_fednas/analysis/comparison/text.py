"""Tables of methods as they are shown: a row per method and tier, means with the lowest and highest over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from lit_fednas.analysis.tables import cost_range
from lit_fednas.formatting import short, spread, text_table
from lit_fednas.records import ALL_TIERS

_DASH = "–"
_SPENT = {"spent_macs": "", "spent_bytes": "B"}


@dataclass(frozen=True)
class Rows:
    """A table as it is shown.

    Attributes:
        head: The columns' names.
        body: Rows of as many cells.
        left: How many columns are words.
        notes: Sentences below it.
    """

    head: list[str]
    body: list[list[str]]
    left: int = 1
    notes: list[str] = field(default_factory=list)

    def text(self, markdown: bool = False) -> str:
        """Returns it as text, or as a table of Markdown."""
        return "\n\n".join([text_table(self.head, self.body, left=self.left, markdown=markdown), *self.notes])


def comparison_rows(table: pd.DataFrame) -> Rows:
    """Returns a :func:`~lit_fednas.analysis.comparison.comparison_table` as it is shown; accuracies in percent."""
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
    notes = []
    if missing := _names(table[table["arch"].isna()]):
        notes.append(f"No network within the tier: {missing}.")
    if 0 < table["test"].notna().sum() < table["arch"].notna().sum():
        untested = _names(table[table["test"].isna() & table["arch"].notna()])
        notes.append(f"Not tested ('lit-fednas search' with these tiers tests them): {untested}.")
    return Rows(head, body, 2, notes)


def target_rows(table: pd.DataFrame) -> Rows:
    """Returns a :func:`~lit_fednas.analysis.comparison.target_table` as it is shown.

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
    return Rows(head, body)


def client_rows(table: pd.DataFrame) -> Rows:
    """Returns a ``client_table`` as it is shown: all clients of a method together."""
    metric = table.attrs["metric"]
    scale, unit = scale_of(metric)
    head = ["method", "seeds", "clients", f"mean {metric}{unit}", "deviation", "worst", "interquartile range"]
    body = []
    for row in table[table["tier"] == ALL_TIERS].to_dict("records"):
        figures = [f"{scale * row[name]:.2f}" for name in ("mean", "deviation", "worst", "iqr")]
        body.append([str(row["name"]), str(row["runs"]), f"{row['clients']:g}", *figures])
    return Rows(head, body)


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
