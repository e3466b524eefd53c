"""Methods beside each other: what their clients get, and what it cost (FedTrans, Tables 2 and 3).

Costs are those of a run's ledger: multiply-accumulates of all clients' forward passes, and bytes both ways.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from lit_fednas.analysis.clients import fairness_table
from lit_fednas.analysis.methods import COSTS, Methods, Metrics, validations
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.tables import cost_range
from lit_fednas.errors import DataError
from lit_fednas.formatting import fixed, short, spread, text_table
from lit_fednas.records import read_suite

#: What is said of the clients' accuracies: their mean, the interquartile range, and the least.
CLIENTS = ["accuracy", "iqr", "worst"]


def method_table(methods: Methods, rounds: tuple[int, int] | None = None) -> pd.DataFrame:
    """Returns each run's client accuracies and costs.

    Args:
        methods: Runs that differ in their seeds, by method; each with ``clients.csv``.
        rounds: From the first round on and up to the second, counted from 1, for runs of different lengths and to
            even out what goes up and down from round to round: the accuracies are means over the evaluations
            within, and the costs are those until the second. If not given, it is the end of each run.

    Returns:
        ``method``, ``run``, ``accuracy`` (mean over clients, each of which counts once), ``iqr``, ``worst``,
        ``macs``, ``network`` (bytes both ways), ``storage`` (bytes of all models that the server keeps); NaN
        where the records do not tell a cost.

    Raises:
        DataError: A run has no ``clients.csv``, or it is broken; or it has not evaluated its clients within the
            rounds, or ended before.
    """
    rows = []
    for method, runs in methods.items():
        for run in runs:
            if rounds is None:
                clients = fairness_table({method: [run.folder]}).rename(columns={"mean": "accuracy"}).iloc[0]
            else:
                clients = _evaluated(run, *rounds)
            until = None if rounds is None else rounds[1]
            spent = _spent(run, until)
            network = spent["bytes_down"] + spent["bytes_up"]
            costs = {"macs": spent["macs"], "network": network, "storage": storage_bytes(run, until)}
            rows.append({"method": method, "run": run.name, **clients[CLIENTS], **costs})
    return pd.DataFrame(rows)


def _evaluated(run: Run, first: int, last: int) -> pd.Series:
    """Returns the means of :data:`CLIENTS` over the evaluations within rounds."""
    table = run.rounds
    if len(table) < last:
        raise DataError(f"{run.folder}: has {len(table)} rounds; name rounds up to that, not {last}")
    within = table[table["round"].between(first - 1, last - 1)]
    figures = within.reindex(columns=[f"deployed/{name}" for name in CLIENTS]).mean()
    if figures.isna().any():
        raise DataError(
            f"{run.folder}: has evaluated no clients in the rounds {first} to {last}; train with deployed_accuracy"
        )
    return figures.rename(index=lambda name: name.removeprefix("deployed/"))


def _spent(run: Run, until: int | None) -> pd.Series:
    """Returns MACs, bytes down and bytes up of all clients: of the ledger, or else of the rounds."""
    if run.ledger is not None and until is None:
        return pd.Series(run.ledger["total"], dtype=float)
    clients = run.clients if until is None else run.clients[run.clients["round"] < until]
    return clients[list(COSTS)].sum(min_count=1).astype(float)


def storage_bytes(run: Run, until: int | None = None) -> float:
    """Returns the bytes of the models that the server keeps.

    A run of a growing suite keeps all of its models. Of another, whose subnets share their weights, it is the
    largest evaluated subnet, which must be the whole network for that.

    Args:
        run: The run.
        until: After so many rounds; at the end if not given.

    Returns:
        Bytes; NaN if no subnet was evaluated.
    """
    suite = read_suite(run.folder)
    if suite is not None:
        kept = [model for model in suite["models"] if until is None or (model["round"] or 0) < until]
        return float(sum(model["bytes"] for model in kept))
    return float(pd.concat([run.subnets(split)["bytes"] for split in ("val", "test")]).max())


def method_markdown(table: pd.DataFrame) -> str:
    """Returns a :func:`method_table` as FedTrans' Table 2: a row per method, means with least and greatest.

    Accuracies are in percent; the last column says how many times the first method's multiply-accumulates a method
    has taken.
    """
    head = ["method", "seeds", "accuracy (%)", "IQR (%)", "worst (%)", "cost (MACs)", "network", "storage", "× cost"]
    base = table[table["method"] == table["method"].iloc[0]]["macs"].mean(skipna=False)
    body = []
    for method, rows in table.groupby("method", sort=False):
        accuracies = [spread(100 * rows[name], digits=2) for name in CLIENTS]
        costs = [cost_range(rows["macs"], short)]
        costs += [cost_range(rows[name], partial(short, unit="B")) for name in ("network", "storage")]
        times = fixed(rows["macs"].mean(skipna=False) / base, 1)
        body.append([str(method), str(len(rows)), *accuracies, *costs, times])
    return text_table(head, body, markdown=True)


def levels_by_cost(methods: Methods) -> dict[str, dict[str, str]]:
    """Returns the evaluated subnets by ascending MACs; those of the same rank in all methods make a level.

    Args:
        methods: Runs that differ in their seeds, by method.

    Returns:
        Each level's metric by method (``val/<subnet>/accuracy``), by the name of the first method's subnet.

    Raises:
        DataError: A run has no ``subnets-val.csv``, its runs' subnets differ, or methods have different numbers.
    """
    subnets: dict[str, list[str]] = {}
    for method, runs in methods.items():
        for run in runs:
            table = run.subnets("val").sort_values("macs", kind="stable")
            if table.empty:
                raise DataError(
                    f"{run.folder}: has no subnets-val.csv, as it has not ended; say with --metric what to compare"
                )
            if subnets.setdefault(method, list(table["subnet"])) != list(table["subnet"]):
                raise DataError(f"{method}: its runs evaluated different subnets; say with --metric which to compare")
    first, names = next(iter(subnets.items()))
    for method, others in subnets.items():
        if len(others) != len(names):
            raise DataError(
                f"{method}: evaluated {len(others)} subnets, {first} {len(names)}; say with --metric which to compare"
            )
    return {
        name: {method: f"val/{others[rank]}/accuracy" for method, others in subnets.items()}
        for rank, name in enumerate(names)
    }


def least_total(methods: Methods) -> int:
    """Returns the MACs of the run that has spent least."""
    return min(_total(run) for runs in methods.values() for run in runs)


def computation_table(methods: Methods, levels: Metrics, macs: float) -> pd.DataFrame:
    """Returns each run at its last validation whose cumulative MACs are at most the budget.

    Args:
        methods: Runs that differ in their seeds, by method.
        levels: The levels' metrics; a validation counts that has all of them.
        macs: The budget.

    Returns:
        ``method``, ``run``, ``rounds``, ``macs``, ``bytes_down``, ``bytes_up`` (until then), ``total_macs`` (of
        the whole run), then a column of accuracies per level.

    Raises:
        DataError: A run has never logged a metric, has no costs, or had spent more by its first validation.
    """
    rows = []
    for method, runs in methods.items():
        names = {level: metrics[method] for level, metrics in levels.items()}
        for run in runs:
            total = _total(run)
            rounds = validations(run, list(dict.fromkeys(names.values())))
            within = rounds[rounds["macs"] <= macs]
            if within.empty:
                raise DataError(
                    f"{run.folder}: had spent {rounds['macs'].iloc[0]:.4g} MACs by its first validation, which is "
                    f"more than the budget of {macs:.4g}; give more with --macs"
                )
            last = within.iloc[-1]
            costs = {name: int(last[name]) for name in ("rounds", *COSTS)}
            reached = {level: last[metric] for level, metric in names.items()}
            rows.append({"method": method, "run": run.name, **costs, "total_macs": total, **reached})
    return pd.DataFrame(rows)


def computation_markdown(table: pd.DataFrame, macs: float) -> str:
    """Returns a :func:`computation_table` with a row per method: accuracies in percent, means, least and greatest.

    A line below names the runs that ended before they had spent the budget, as they could have gone on.

    Args:
        table: The table.
        macs: The budget.
    """
    levels = list(table.columns[table.columns.get_loc("total_macs") + 1 :])
    head = ["method", "seeds", *(f"{level} (%)" for level in levels), "rounds", "MACs", "bytes down", "bytes up"]
    body = []
    for method, rows in table.groupby("method", sort=False):
        accuracies = [spread(100 * rows[level]) for level in levels]
        spent = [short(rows[name].mean(), "" if name == "macs" else "B") for name in COSTS]
        rounds = f"{rows['rounds'].mean():.1f}".removesuffix(".0")
        body.append([str(method), str(len(rows)), *accuracies, rounds, *spent])
    text = text_table(head, body, markdown=True)
    ended = table[table["total_macs"] < macs]
    names = ", ".join(ended["method"] + " " + ended["run"])
    return f"{text}\n\nEnded before the budget of {short(macs, 'MACs')}: {names}." if names else text


def _total(run: Run) -> int:
    """Returns what all clients of a run have spent, in MACs."""
    macs = run.clients["macs"]
    if macs.isna().all():
        raise DataError(f"{run.folder}: its records count no MACs; train it again with the present version")
    return int(macs.sum())
