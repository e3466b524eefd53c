"""The command ``lit-fednas compare``: methods beside each other, a row per method and tier.

Each method is a label and patterns of its runs' folders, which differ in their seeds; without a label, runs are methods
by the names of their folders. Of every run, the best network within each tier's budgets is taken by its validation
metric: of evaluated subnets, exits, grown or pruned models, and of searches. A pattern may also name one search or one
fine-tuning in a run.

    lit-fednas compare runs/superfed runs/fedhen --tiers tiers.yaml
    lit-fednas compare "SuperFed=runs/superfed*/version_*" "alone=runs/superfed*/version_*/scratch" --output compared
    lit-fednas compare runs/arena --macs equal --targets 0.5 0.6
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lit_fednas.comparison.figures import comparison_figure
from lit_fednas.comparison.results import Methods, read_methods
from lit_fednas.comparison.tables import (
    BudgetName,
    client_table,
    comparison_table,
    least_spent,
    target_table,
)
from lit_fednas.comparison.text import client_text, comparison_text, target_text
from lit_fednas.comparison.tiers import Tiers, read_tiers, tiers_of
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.formatting import short
from lit_fednas.records.files import check_output, replace_text, replacing


@dataclass(frozen=True)
class Comparison:
    """All tables of a comparison.

    Attributes:
        methods: What is compared.
        tiers: At which budgets of a network.
        networks: The best networks (:func:`~lit_fednas.comparison.comparison_table`).
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

    def text(self, markdown: bool = False) -> str:
        """Returns all tables as text."""
        parts = []
        if self.budget:
            spent = ", ".join(
                short(most, {"macs": "MACs", "bytes": "B"}.get(unit, unit)) for unit, most in self.budget.items()
            )
            parts.append(f"At the last validation within {spent} of all clients:")
        parts.append(comparison_text(self.networks, markdown))
        if self.targets is not None:
            parts += ["Training until a network within the tier reached a target:", target_text(self.targets, markdown)]
        if len(self.clients):
            parts += ["Clients, on their own data:", client_text(self.clients, markdown)]
        return "\n\n".join(parts)

    def write(self, folder: Path) -> list[str]:
        """Writes ``compare.md``, ``compare.png`` and a CSV file per table into a folder; returns their names."""
        tables = {"compare": self.networks, "targets": self.targets, "clients": self.clients}
        written = ["compare.md", "compare.png"]
        replace_text(folder / "compare.md", self.text(markdown=True) + "\n")
        with replacing(folder / "compare.png") as file:
            comparison_figure(self.methods, self.tiers, self.networks).savefig(file, dpi=150)
        for name, table in tables.items():
            if table is not None and len(table):
                replace_text(folder / f"{name}.csv", table.to_csv(index=False))
                written.append(f"{name}.csv")
        return written


def compared(
    methods: Methods,
    tiers: Tiers | None = None,
    metric: str | None = None,
    budget: Mapping[BudgetName, float | None] | None = None,
    targets: Sequence[float] = (),
) -> Comparison:
    """Compares methods.

    Args:
        methods: Results that differ in their seeds, by method.
        tiers: Budgets of a network, by tier; those of the searches, if not given and the same in all of them.
        metric: By which networks are chosen; the task's first if not given.
        budget: Of training, by ``macs``, ``bytes`` or ``rounds``; ``None`` for the most that every run has reached.
        targets: Values of the metric.

    Returns:
        The tables.

    Raises:
        DataError: Results lack what is asked for.
    """
    tiers = tiers_of(methods) if tiers is None else tiers
    least = {unit: least_spent(methods, unit) if most is None else most for unit, most in (budget or {}).items()}
    return Comparison(
        methods,
        tiers,
        comparison_table(methods, tiers, metric, least or None),
        least,
        target_table(methods, tiers, targets, metric) if targets else None,
        client_table(methods),
    )


def main(args: Sequence[str] | None = None) -> int:
    """Compares methods by what the words of a command line say.

    Args:
        args: The words after ``lit-fednas compare``.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(sys.argv[2:] if args is None else args)
    try:
        if options.output is not None:
            check_output(options.output / "compare.md")
        budget: dict[BudgetName, float | None] = {}
        for unit in ("macs", "bytes", "rounds"):
            if (given := getattr(options, unit)) is not None:
                budget[unit] = None if given == "equal" else given
        tiers = None if options.tiers is None else read_tiers(options.tiers)
        comparison = compared(read_methods(options.methods), tiers, options.metric, budget, options.targets)
        print(comparison.text(options.markdown))
        if options.output is not None:
            print(f"\nwritten in {options.output}: {', '.join(comparison.write(options.output))}")
    except (ConfigError, DataError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-fednas compare",
        description=str(__doc__).partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("methods", nargs="+", metavar="label=pattern", help="pattern,pattern of the folders of a method's runs")
    add("--tiers", type=Path, help="a YAML file of budgets by tier; else those of the searches")
    add("--metric", help="by which networks are chosen; else the task's first")
    most = "the networks at the last validation within so many {} of training; equal: the most that all have reached"
    for unit in ("macs", "bytes", "rounds"):
        add(f"--{unit}", type=_budget, metavar="N|equal", help=most.format(unit))
    add("--targets", type=float, nargs="+", default=[], help="of the metric: what training until there has taken")
    add("--markdown", action="store_true", help="print tables of Markdown")
    add("--output", type=Path, help="a folder for compare.md, compare.png and CSV files")
    return parser


def _budget(word: str) -> float | str:
    if word == "equal":
        return word
    number = float(word)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{word} must be above 0, or equal")
    return number
