"""Tables from the records of one or several runs and searches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lit_fednas.analysis.runs import Run, SearchResult


def subnet_rounds(runs: Sequence[Run], metric: str = "accuracy") -> pd.DataFrame:
    """Returns a validation metric of each subnet over the rounds: ``run``, ``round``, ``subnet``, the metric."""
    parts = []
    for run in runs:
        names = [name for name in run.rounds if name.startswith("val/") and name.endswith(f"/{metric}")]
        subnets = {name: name.removeprefix("val/").removesuffix(f"/{metric}") for name in names}
        subnets.pop("val/mean/accuracy", None)
        long = run.rounds[["round", *subnets]].rename(columns=subnets)
        parts.append(long.melt("round", var_name="subnet", value_name=metric).assign(run=run.name))
    columns = ["run", "round", "subnet", metric]
    return pd.concat(parts)[columns].dropna().reset_index(drop=True) if parts else pd.DataFrame(columns=columns)


def total_costs(run: Run) -> pd.DataFrame:
    """Returns what a run's clients have spent until each round: ``round``, ``total_macs``, ``total_bytes``."""
    clients = run.clients.assign(total_bytes=run.clients["bytes_down"] + run.clients["bytes_up"])
    spent = clients.rename(columns={"macs": "total_macs"}).groupby("round")[["total_macs", "total_bytes"]].sum()
    return spent.cumsum().reset_index()


def independent_costs(ledger: Mapping[str, Any]) -> pd.DataFrame:
    """Compares a run's cost with training each evaluated subnet on its own with the same cohorts.

    Returns:
        ``training`` (``this run``, a row per subnet, ``one by one``: their sum), ``macs``, ``bytes``, and both
        as multiples of this run's: ``times_macs``, ``times_bytes``.
    """
    rows = {"this run": ledger["total"], **ledger["independent"]}
    table = pd.DataFrame(
        [(name, cost["macs"], cost["bytes_down"] + cost["bytes_up"]) for name, cost in rows.items()],
        columns=["training", "macs", "bytes"],
    )
    alone = table.iloc[1:][["macs", "bytes"]].sum()
    table.loc[len(table)] = ["one by one", alone["macs"], alone["bytes"]]
    for name in ("macs", "bytes"):
        table[f"times_{name}"] = table[name] / (table[name].iloc[0] or np.nan)
    return table


def client_table(run: Run) -> pd.DataFrame:
    """Returns one row per client that was selected.

    Returns:
        ``client``, ``examples``, ``rounds`` (asked), ``share`` (of all rounds), ``failed`` (without an update),
        ``loss`` (mean over its rounds, during local training), ``last_loss``, ``macs``, ``bytes``.
    """
    clients = run.clients.assign(
        failed=run.clients["status"] != "ok", bytes=run.clients["bytes_down"] + run.clients["bytes_up"]
    )
    table = clients.groupby("client").agg(
        examples=("num_examples", "last"),
        rounds=("round", "nunique"),
        failed=("failed", "sum"),
        loss=("loss", "mean"),
        last_loss=("loss", "last"),
        macs=("macs", "sum"),
        bytes=("bytes", "sum"),
    )
    table.insert(2, "share", table["rounds"] / max(1, len(run.rounds)))
    return table.reset_index()


def progress(searches: Mapping[str, Sequence[SearchResult]], tier: str) -> pd.DataFrame:
    """Returns how far searches were after how many evaluations, one row per search and count.

    A search keeps what it has reached until its next generation. Counts run from where all searches of a group
    have their first generation to where the first of them ends, so that every mean is over the same searches.

    Args:
        searches: Searches of several seeds, by method.
        tier: The tier.

    Returns:
        ``method``, ``search`` (its place in the group), ``evaluations``, ``best_accuracy``, ``hypervolume``.
    """
    parts = []
    for method, group in searches.items():
        tables = [one.history[one.history["tier"] == tier].set_index("evaluations") for one in group]
        tables = [table[~table.index.duplicated(keep="last")] for table in tables if len(table)]
        counts = sorted({count for table in tables for count in table.index})
        counts = [c for c in counts if all(table.index[0] <= c <= table.index[-1] for table in tables)]
        for place, table in enumerate(tables):
            reached = table[["best_accuracy", "hypervolume"]].reindex(counts, method="ffill")
            parts.append(reached.rename_axis("evaluations").reset_index().assign(method=method, search=place))
    columns = ["method", "search", "evaluations", "best_accuracy", "hypervolume"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def setting_rows(settings: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Returns a configuration as dotted names and texts, in its order.

    Example:
        >>> setting_rows({"model": {"widths": [8, 16], "norm": None}, "seed": 0})
        [('model.widths', '[8, 16]'), ('model.norm', 'null'), ('seed', '0')]
    """
    rows = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += setting_rows(value, f"{path}{name}.")
        else:
            rows.append((f"{path}{name}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return rows
