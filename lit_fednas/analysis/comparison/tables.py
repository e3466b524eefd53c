"""Tables of methods: the best network of each tier, at the end or within a budget of training; targets; clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from lit_fednas.analysis.clients import fairness_table
from lit_fednas.analysis.comparison.results import Methods
from lit_fednas.analysis.comparison.run_networks import COLUMNS, SPENT, history, networks
from lit_fednas.analysis.comparison.tiers import Tiers, within
from lit_fednas.errors import DataError
from lit_fednas.records.run import reaches

#: What training can be given a budget of, and its column.
BUDGETS = {"macs": "spent_macs", "bytes": "spent_bytes", "rounds": "rounds"}
BudgetName = Literal["macs", "bytes", "rounds"]
_WHOSE = ("tier", "method", "result", "seed")


def metric_of(methods: Methods, metric: str | None = None) -> tuple[str, bool]:
    """Returns the metric that all methods are compared by, and whether higher is better.

    Args:
        methods: The methods.
        metric: Its name; the first of the first run's task if not given.

    Raises:
        DataError: A run has no such metric.
    """
    runs = [result.run for results in methods.values() for result in results]
    name = metric or runs[0].metric
    for run in runs:
        if name not in run.metrics:
            raise DataError(f"{run.folder}: has no {name}; choose from {', '.join(run.metrics)}")
    return name, runs[0].metrics[name] is not False


def comparison_table(
    methods: Methods,
    tiers: Tiers,
    metric: str | None = None,
    budget: Mapping[BudgetName, float] | None = None,
) -> pd.DataFrame:
    """Returns the best network of every method, seed and tier, by its validation metric.

    Args:
        methods: Results that differ in their seeds, by method.
        tiers: Budgets of the networks, by tier.
        metric: By which the networks are chosen; the task's first if not given.
        budget: Of training; then it is the networks at the last validation within it. At the end if not given.

    Returns:
        A row per tier, method and seed: ``tier``, ``method``, ``result``, ``seed``, and
        :data:`~lit_fednas.analysis.comparison.run_networks.COLUMNS`, which are empty where no network fits the tier.
        ``metric`` and ``higher`` are in the table's ``attrs``.

    Raises:
        DataError: A result has no such figures, or had spent more than the budget by its first validation.
    """
    name, higher = metric_of(methods, metric)
    rows = []
    for method, results in methods.items():
        for result in results:
            table = networks(result, name) if budget is None else _until(history(result, name), budget, result.name)
            for tier, limits in tiers.items():
                best = best_within(table, limits, higher)
                chosen = best.iloc[0][list(COLUMNS)].to_dict() if len(best) else {}
                rows.append({"tier": tier, "method": method, "result": result.name, "seed": result.seed, **chosen})
    table = pd.DataFrame(rows, columns=[*_WHOSE, *COLUMNS])
    table["tier"] = pd.Categorical(table["tier"], list(tiers))
    table = table.sort_values("tier", kind="stable").astype({"tier": str}).reset_index(drop=True)
    table.attrs.update(metric=name, higher=higher)
    return table


def best_within(table: pd.DataFrame, limits: Mapping[str, float], higher: bool) -> pd.DataFrame:
    """Returns the network of the best validation metric within limits, the cheapest of equals: one row or none."""
    fitting = within(table, limits).dropna(subset=["val"])
    return fitting.sort_values(["val", "macs"], ascending=[not higher, True], kind="stable").head(1)


def _until(rounds: pd.DataFrame, budget: Mapping[BudgetName, float], name: str) -> pd.DataFrame:
    """Returns the networks of the last validation within a budget."""
    within_budget = rounds
    for unit, most in budget.items():
        within_budget = within_budget[within_budget[BUDGETS[unit]] <= most]
        if within_budget.empty:
            first = rounds[BUDGETS[unit]].min()
            raise DataError(f"{name}: had spent {first:.4g} {unit} by its first validation; give more than {most:.4g}")
    return within_budget[within_budget["rounds"] == within_budget["rounds"].max()]


def least_spent(methods: Methods, unit: BudgetName) -> float:
    """Returns the budget that every result has reached: the least that one had spent by its last validation."""
    ends = [history(result)[BUDGETS[unit]].max() for results in methods.values() for result in results]
    if any(end != end for end in ends):
        raise DataError(f"{unit}: a run's records do not count them; train it again with the present version")
    return float(min(ends))


def target_table(methods: Methods, tiers: Tiers, targets: Sequence[float], metric: str | None = None) -> pd.DataFrame:
    """Returns what each result needed until a network within a tier reached a target on the validation data.

    Args:
        methods: Runs that differ in their seeds, by method.
        tiers: Budgets of the networks, by tier.
        targets: Values of the metric.
        metric: The task's first if not given.

    Returns:
        ``tier``, ``target``, ``method``, ``result``, ``seed``, ``reached``, ``rounds``, ``spent_macs``,
        ``spent_bytes``: of the first validation that reached it, or of the last if none did, which is a lower bound;
        empty where no network fits the tier.

    Raises:
        DataError: A run has not logged its networks.
    """
    name, higher = metric_of(methods, metric)
    rows = []
    for method, results in methods.items():
        for result in results:
            rounds = history(result, name)
            for tier, limits in tiers.items():
                fitting = within(rounds, limits)
                for target in targets:
                    reached = fitting[[reaches(value, target, higher) for value in fitting["val"]]]
                    spent = {} if fitting.empty else (fitting.iloc[-1] if reached.empty else reached.iloc[0])
                    whose = {"method": method, "result": result.name, "seed": result.seed}
                    figures = {one: spent.get(one) for one in SPENT}
                    rows.append({"tier": tier, "target": target, **whose, "reached": len(reached) > 0, **figures})
    columns = ["tier", "target", "method", "result", "seed", "reached", *SPENT]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(SPENT, float))
    table["tier"] = pd.Categorical(table["tier"], list(tiers))
    table = table.sort_values(["tier", "target"], kind="stable").astype({"tier": str}).reset_index(drop=True)
    table.attrs.update(metric=name, higher=higher)
    return table


def client_table(methods: Methods) -> pd.DataFrame:
    """Returns how the clients fare with the network that each would use, where their own data rated it.

    Args:
        methods: The methods; results without ``clients.csv`` are left out.

    Returns:
        The table of :func:`~lit_fednas.analysis.clients.fairness_table`, per method; empty without such results.
    """
    folders = {
        method: [result.clients_folder for result in results if result.clients_folder is not None]
        for method, results in methods.items()
    }
    return fairness_table({method: found for method, found in folders.items() if found})
