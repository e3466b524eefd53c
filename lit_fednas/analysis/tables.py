"""Tables from the records of one run, or of runs beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError

#: What a run's clients spend, as ``rounds.jsonl`` counts it.
COSTS = ("macs", "bytes_down", "bytes_up")


def subnet_metric(run: Run) -> pd.DataFrame:
    """Returns the run's metric on the validation data: a row per round, a column per subnet; NaN without validation."""
    table = run.rounds.set_index("round").filter(regex=f"^val/.*/{run.metric}$")
    table = table.drop(columns=f"val/mean/{run.metric}", errors="ignore")
    return table.rename(columns=lambda name: name.removeprefix("val/").removesuffix(f"/{run.metric}"))


def validations(run: Run, metrics: Sequence[str]) -> pd.DataFrame:
    """Returns the rounds of a run that have all of the metrics, with what its clients had spent by then.

    Args:
        run: The run.
        metrics: Names as they were logged.

    Returns:
        ``rounds`` (as many as were trained: the first is 1), the metrics, and the cumulated ``macs``,
        ``bytes_down`` and ``bytes_up`` (NaN if the run has not counted them).

    Raises:
        DataError: The run has never logged a metric, or has no round with all of them.
    """
    table = run.rounds
    for metric in metrics:
        if metric not in table or table[metric].isna().all():
            known = [name for name in table if name.startswith(("val/", "test/"))]
            raise DataError(f"{run.folder}: has not logged {metric}; choose from {', '.join(known) or 'nothing'}")
    spent = run.clients.groupby("round")[list(COSTS)].sum(min_count=1).reindex(table["round"])
    if spent.notna().any(axis=None):
        spent = spent.fillna(0)  # nobody took part, or all of them failed
    rounds = table.set_index("round")[list(metrics)].join(spent.cumsum()).dropna(subset=list(metrics))
    if rounds.empty:
        raise DataError(f"{run.folder}: has no round with all of {', '.join(metrics)}; give those of one validation")
    return rounds.set_index(rounds.index + 1).rename_axis("rounds").reset_index()


def stairs(curves: Sequence[pd.Series], xs: Sequence[float] | None = None) -> pd.DataFrame:
    """Returns curves at the same x, where each keeps its value until its next one.

    Args:
        curves: Values by ascending x; of equal x the last one counts.
        xs: The x; by default those of all curves up to where the first curve ends.

    Returns:
        A row per x from where all curves have begun, a column per curve.

    Example:
        >>> stairs([pd.Series({1: 0.1, 3: 0.2}), pd.Series({2: 0.5, 4: 0.6})]).to_dict("list")
        {0: [0.1, 0.2], 1: [0.5, 0.5]}
    """
    curves = [curve.groupby(level=0).last() for curve in curves]
    if xs is None:
        end = min((curve.index[-1] for curve in curves), default=0)
        xs = sorted({x for curve in curves for x in curve.index if x <= end})
    return pd.DataFrame({index: curve.reindex(xs, method="ffill") for index, curve in enumerate(curves)}).dropna()


def cost_range(costs: pd.Series, write: Callable[[float], str]) -> str:
    """Returns a mean, and the least and greatest where they differ; a dash where one is missing, or all are.

    Example:
        >>> cost_range(pd.Series([1.0, 3.0]), "{:.0f} B".format)
        '2 B (1 B to 3 B)'
    """
    if costs.empty or costs.isna().any():
        return "–"
    mean = write(costs.mean())
    return mean if costs.nunique() == 1 else f"{mean} ({write(costs.min())} to {write(costs.max())})"


def total_costs(run: Run) -> pd.DataFrame:
    """Returns what a run's clients have spent until each round (the index): ``total_macs``, ``total_bytes``."""
    clients = run.clients.assign(total_bytes=run.clients["bytes_down"] + run.clients["bytes_up"])
    spent = clients.rename(columns={"macs": "total_macs"}).groupby("round")[["total_macs", "total_bytes"]].sum()
    return spent.cumsum()


def independent_costs(ledger: Mapping[str, Any]) -> pd.DataFrame:
    """Compares a run's cost with training each evaluated subnet on its own with the same cohorts.

    Args:
        ledger: ``ledger.json``.

    Returns:
        ``training`` (``this run``, a row per subnet, ``one by one``: their sum), ``macs``, ``bytes``, and both
        as multiples of this run's: ``times_macs``, ``times_bytes``.
    """
    costs = pd.DataFrame({"this run": ledger["total"], **ledger["independent"]}).T
    table = pd.DataFrame({"macs": costs["macs"], "bytes": costs["bytes_down"] + costs["bytes_up"]})
    table.loc["one by one"] = table.iloc[1:].sum()
    times = (table / table.iloc[0].where(table.iloc[0] != 0)).add_prefix("times_")
    return table.join(times).rename_axis("training").reset_index()


def family_costs(ledger: Mapping[str, Any]) -> pd.DataFrame:
    """Returns what it takes to train a family of subnets one by one, by the family's size (SuperFed, Figure 6).

    A family of one is the subnet of most MACs (section 3.3: the largest), and each further one the next.

    Args:
        ledger: ``ledger.json``.

    Returns:
        A row per size, from 1 (the index): the cumulated columns of :func:`independent_costs`.
    """
    costs = independent_costs(ledger).set_index("training").drop(["this run", "one by one"])
    family = costs.sort_values("macs", ascending=False, kind="stable").cumsum()
    return family.set_index(pd.RangeIndex(1, len(family) + 1, name="subnets"))


def client_table(run: Run) -> pd.DataFrame:
    """Returns one row per client that was selected.

    Args:
        run: The run.

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


def leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a configuration's values by dotted name, in its order; lists and empty groups are values.

    Example:
        >>> list(leaves({"model": {"widths": [8, 16], "norm": None}, "seed": 0}))
        [('model.widths', [8, 16]), ('model.norm', None), ('seed', 0)]
    """
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
