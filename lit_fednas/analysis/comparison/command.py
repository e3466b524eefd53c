"""The command ``lit-fednas compare``: methods beside each other, a row per method and tier.

lit-fednas compare runs/superfed runs/fedhen --tiers tiers.yaml
lit-fednas compare "SuperFed=runs/superfed*/version_*" "alone=runs/superfed*/version_*/scratch" --output compared
lit-fednas compare runs/study --macs equal --targets 0.5 0.6
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd

from lit_fednas.analysis.comparison.figures import comparison_figure
from lit_fednas.analysis.comparison.results import Methods, read_methods
from lit_fednas.analysis.comparison.tables import (
    BudgetName,
    client_table,
    comparison_table,
    least_spent,
    target_table,
)
from lit_fednas.analysis.comparison.text import Rows, client_rows, comparison_rows, target_rows
from lit_fednas.analysis.comparison.tiers import Tiers, read_tiers, tiers_of
from lit_fednas.analysis.report import Charts, Table, picture, write_page
from lit_fednas.analysis.report.blocks import Block
from lit_fednas.formatting import short
from lit_fednas.ranges import PositiveFloat, PositiveInt
from lit_fednas.records.files import check_output, replace_text, replacing

#: A budget of training, or ``equal`` for the most that all have reached.
Limit: TypeAlias = float | Literal["equal"]


@dataclass(frozen=True)
class Comparison:
    """All tables of a comparison.

    Attributes:
        methods: What is compared.
        tiers: At which budgets of a network.
        networks: The best networks (:func:`~lit_fednas.analysis.comparison.comparison_table`).
        budget: Of training, if the networks are those within one.
        targets: What reaching the targets took; ``None`` if none was given.
        clients: How the clients fare; empty where no run has rated them.
    """

    methods: Methods
    tiers: Tiers
    networks: pd.DataFrame
    budget: Mapping[BudgetName, float]
    targets: pd.DataFrame | None
    clients: pd.DataFrame

    def shown(self) -> dict[str, Rows]:
        """Returns the tables as they are shown, by heading."""
        heading = "Networks"
        if self.budget:
            units = {"macs": "MACs", "bytes": "B"}
            spent = ", ".join(short(most, units.get(unit, unit)) for unit, most in self.budget.items())
            heading = f"Networks at the last validation within {spent} of all clients' training"
        tables = {heading: comparison_rows(self.networks)}
        if self.targets is not None:
            tables["Training until a network within the tier reached a target"] = target_rows(self.targets)
        if len(self.clients):
            tables["Clients, on their own data"] = client_rows(self.clients)
        return tables

    def text(self, markdown: bool = False) -> str:
        """Returns all tables as text."""
        mark = "## " if markdown else ""
        return "\n\n".join(f"{mark}{heading}\n\n{rows.text(markdown)}" for heading, rows in self.shown().items())

    def write(self, folder: Path) -> list[str]:
        """Writes text, picture, page, and a CSV file per table into a folder; returns the files' names."""
        tables = {"compare": self.networks, "targets": self.targets, "clients": self.clients}
        written = ["compare.md", "compare.png", "compare.html"]
        replace_text(folder / "compare.md", self.text(markdown=True) + "\n")
        figure = comparison_figure(self.methods, self.tiers, self.networks)
        with replacing(folder / "compare.png") as file:
            figure.savefig(file, dpi=150)
        sections: dict[str, Sequence[Block]] = {
            heading: [Table(rows.head, rows.body, rows.left), *rows.notes] for heading, rows in self.shown().items()
        }
        write_page(
            f"{len(self.methods)} methods compared",
            {**sections, "Figure": [Charts([picture("Fronts and curves", figure)])]},
            folder / "compare.html",
        )
        for name, table in tables.items():
            if table is not None and len(table):
                replace_text(folder / f"{name}.csv", table.to_csv(index=False))
                written.append(f"{name}.csv")
        return written


def compared(
    methods: Methods,
    tiers: Tiers | None = None,
    metric: str | None = None,
    macs: Limit | None = None,
    bytes: Limit | None = None,
    rounds: Limit | None = None,
    targets: Sequence[float] | None = None,
) -> Comparison:
    """Compares methods.

    Args:
        methods: Results that differ in their seeds, by method.
        tiers: Budgets of a network, by tier; those of the searches, if not given and the same in all of them.
        metric: By which networks are chosen; the task's first if not given.
        macs: Of training, within which networks are taken; ``equal`` for the most that every run has reached.
        bytes: The same of bytes, both ways.
        rounds: The same of rounds.
        targets: Values of the metric.

    Returns:
        The tables.

    Raises:
        DataError: Results lack what is asked for.
    """
    tiers = tiers_of(methods) if tiers is None else tiers
    given: dict[BudgetName, Limit | None] = {"macs": macs, "bytes": bytes, "rounds": rounds}
    least = {
        unit: least_spent(methods, unit) if isinstance(most, str) else most
        for unit, most in given.items()
        if most is not None
    }
    return Comparison(
        methods,
        tiers,
        comparison_table(methods, tiers, metric, least or None),
        least,
        target_table(methods, tiers, targets, metric) if targets else None,
        client_table(methods),
    )


def compare(
    methods: list[str],
    tiers: Path | None = None,
    metric: str | None = None,
    macs: PositiveFloat | Literal["equal"] | None = None,
    bytes: PositiveFloat | Literal["equal"] | None = None,
    rounds: PositiveInt | Literal["equal"] | None = None,
    targets: list[float] | None = None,
    markdown: bool = False,
    output: Path | None = None,
) -> None:
    """Shows methods beside each other: the best network of every device tier, and what training cost.

    Of every run, the best network within each tier's budgets is taken by its validation metric: of evaluated subnets,
    exits, grown or pruned models, and of searches.

    Args:
        methods: "label=pattern,pattern" of the folders of a method's runs, which differ in their seeds; without a
            label, runs are methods by the names of their folders. A pattern may also name one search or one
            fine-tuning in a run.
        tiers: A YAML file of budgets by tier, such as {small: {macs: 0.8e+6}}; those of the searches if not given.
        metric: By which networks are chosen; the task's first if not given.
        macs: The networks at the last validation within so many MACs of training; "equal" for the most that all
            methods have reached.
        bytes: The same of bytes, both ways.
        rounds: The same of rounds.
        targets: Of the metric: what training took until a network within the tier reached them.
        markdown: Whether to print tables of Markdown.
        output: A folder for compare.md, compare.html, compare.png and CSV files.
    """
    if output is not None:
        check_output(output / "compare.md")
    limits = None if tiers is None else read_tiers(tiers)
    comparison = compared(read_methods(methods), limits, metric, macs, bytes, rounds, targets)
    print(comparison.text(markdown))
    if output is not None:
        print(f"\nwritten in {output}: {', '.join(comparison.write(output))}")
