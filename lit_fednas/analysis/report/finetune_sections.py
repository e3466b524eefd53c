"""What a fine-tuning in a run has to show: each tier's network before and after, the candidates, clients' tests.

A part without its file is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.report.blocks import Block, Cell, Charts, Code, Fold, Table
from lit_fednas.analysis.report.charts import line_chart
from lit_fednas.analysis.runs import Run
from lit_fednas.formatting import cost_text, fixed, short
from lit_fednas.records import FinetuneFiles

Rows = Sequence[Mapping[str, Any]]


def networks(files: FinetuneFiles, tiers: Sequence[str]) -> list[Block]:
    """Shows each tier's network: its costs, its clients, metrics before and after, and what its training cost."""
    settings, rows = files.settings(), files.rows("tiers")
    blocks: list[Block] = [_summary(files, settings)]
    if not rows:
        return blocks
    blocks.append(_table(rows, settings["metric"]))
    lines = {str(row["tier"]): _curve(files, row, settings["metric"]) for row in rows}
    title = f"Validation {settings['metric']} by rounds of fine-tuning"
    return [*blocks, Charts([line_chart(title, lines, "round", settings["metric"], names=tiers)])]


def candidates(files: FinetuneFiles, tiers: Sequence[str]) -> list[Block]:
    """Lists all networks that were trained, where a tier had several."""
    rows = files.rows("candidates")
    if len(rows) == len({row["tier"] for row in rows}):
        return []
    return [
        Fold(f"All {len(rows)} networks that were fine-tuned", [_table(rows, files.settings()["metric"], "number")])
    ]


def clients_tests(files: FinetuneFiles, tiers: Sequence[str]) -> list[Block]:
    """Lists the models that all clients tested, before and after fine-tuning."""
    rows, metric = files.rows("models"), files.settings()["metric"]
    if not rows or metric not in rows[0]:
        return []
    body: list[list[Cell]] = [
        [
            *(row["arch"], cost_text("macs", row["macs_per_example"]), f"{row['clients']:,}", f"{row['examples']:,}"),
            *(fixed(row[f"{metric}_before"]), fixed(row[metric])),
        ]
        for row in rows
    ]
    head = ["model", "MACs", "clients", "test examples", f"{metric} before", "fine-tuned"]
    return [Table(head, body, title="On the test data of all clients")]


#: What each table of a fine-tuning is shown as, in this order.
PARTS: Sequence[tuple[str, Callable[[FinetuneFiles, Sequence[str]], list[Block]]]] = (
    ("tiers", networks),
    ("candidates", candidates),
    ("models", clients_tests),
)


def _summary(files: FinetuneFiles, settings: Mapping[str, Any]) -> str:
    drawn, start = settings.get("architectures"), {"random": "random", "supernet": "the supernet's"}
    text = f"{drawn} networks per tier, drawn at random" if drawn else f"The networks of {settings['search']}"
    text = text if settings.get("models") is None else "The models that were named"
    if settings.get("initial") in start:
        text += f", trained from {start[settings['initial']]} weights"
    text += "."
    if not settings.get("complete"):
        text += " The fine-tuning has not ended."
    tau = files.rank_correlation()
    if tau is None:
        return text
    return f"{text} Kendall's tau of validation {settings['metric']} before and test {settings['metric']}: {tau:.2f}."


def _table(rows: Rows, metric: str, *further: str) -> Table:
    shown = {f"val_{metric}_before": "val before", f"val_{metric}": f"val {metric}", f"test_{metric}": f"test {metric}"}
    body: list[list[Cell]] = [
        [
            *(str(row["tier"]), *(str(row[name]) for name in further)),
            *(short(row["macs_per_example"]), short(row["parameters"]), short(row["bytes"], "B")),
            *(f"{row['eligible'] or 0:,}", f"{row['rounds'] or 0:,}", *(fixed(row[name]) for name in shown)),
            *(short(row["macs"]), short(row["bytes_down"], "B"), short(row["bytes_up"], "B"), Code(row["arch"])),
        ]
        for row in rows
    ]
    head = ["tier", *further, "MACs", "parameters", "bytes", "clients", "rounds", *shown.values()]
    return Table([*head, "MACs in all", "sent down", "sent up", "architecture"], body)


def _curve(files: FinetuneFiles, row: Mapping[str, Any], metric: str) -> pd.Series:
    """Returns the validation metric by the number of rounds that a network was trained."""
    rounds = Run(files.folder / "runs" / f"{row['tier']}-{row['number']}").rounds.set_index("round")
    known = rounds.filter(regex=f"^val/[^/]*/{metric}$").astype(float)
    curve = {index + 1: value for index, value in known.iloc[:, 0].items()} if len(known.columns) else {}
    return pd.Series({0: row[f"val_{metric}_before"], **curve}, dtype=float)
