"""The networks of a result: what each costs, how good it is, and what its training had cost.

All tables here have the columns :data:`COLUMNS`: ``arch``; ``val`` and ``test``, the metric on the server's data (NaN
where it was not evaluated); the costs of one network; ``rounds``, ``spent_macs`` (of all clients' forward passes) and
``spent_bytes`` (both ways), until the network had its weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from lit_fednas.analysis.comparison.results import Result
from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import COST_NAMES, FinetuneFiles, SearchFiles, read_sequence, read_suite

SPENT = ("rounds", "spent_macs", "spent_bytes")
COLUMNS = ("arch", "val", "test", *COST_NAMES, *SPENT)


def networks(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns the networks that a result ended with.

    Of a run these are its evaluated subnets and those of its searches, a row each. Of a pruned sequence, a model has
    its weights when it is selected, before the run ends. Searches on one client's data, or by the clients' scores,
    count only if they are given alone: their validation data are others.

    Args:
        result: The result.
        metric: Of the run's; the first if not given.

    Returns:
        A row per network, with :data:`COLUMNS`.

    Raises:
        DataError: Nothing was evaluated, or there is no such metric.
    """
    run = result.run
    metric = metric or run.metric
    if metric not in run.metrics:
        raise DataError(f"{result.folder}: has no {metric}; choose from {', '.join(run.metrics)}")
    if result.part is None:
        tables = [_searched(run, name, metric) for name in run.searches if _on_servers_data(run, name)]
        tables.append(_evaluated(run, metric))
        total = _total(run)
    elif result.part in run.finetunings:
        tables, total = [_finetuned(run, result.part, metric)], _total_of_finetuning(run, result.part)
    else:
        tables, total = [_searched(run, result.part, metric)], _total(run)
    table = _stacked(tables)
    if result.part is None:
        # a network that was tested before one that was not, a search's figures before those of the last validation
        table = table.iloc[table["test"].isna().argsort(kind="stable")].drop_duplicates("arch")
    if table.empty:
        raise DataError(f"{result.folder}: has evaluated no network; let the run end, or search it")
    until = _selected(run) if result.part not in run.finetunings else {}
    for name in SPENT:
        table[name] = [until.get(arch, total)[name] for arch in table["arch"]]
    return table.reset_index(drop=True)


def history(result: Result, metric: str | None = None) -> pd.DataFrame:
    """Returns the evaluated networks of a run at each of its validations; ``test`` is NaN.

    Args:
        result: A run as a whole.
        metric: Of the run's; the first if not given.

    Returns:
        A row per validation and network, with :data:`COLUMNS`; ``rounds`` are as many as were trained by then.

    Raises:
        DataError: It is a search or fine-tuning, or the run has not logged any network's metric.
    """
    if result.part is not None:
        raise DataError(f"{result.folder}: has no validations round by round; give the run's folder")
    run, metric = result.run, metric or result.run.metric
    spent = spent_by_round(run)
    parts = []
    for name, costs in _named_networks(run):
        logged = f"val/{name}/{metric}"
        if logged in run.rounds:
            values = run.rounds.set_index("round")[logged].dropna().rename("val")
            parts.append(spent.join(values, how="inner").assign(**costs))
    if not parts:
        raise DataError(
            f"{run.folder}: has logged no {metric} of a network whose costs are known; let the run end, which writes "
            f"subnets-val.csv"
        )
    return _stacked(parts).sort_values("rounds", kind="stable").reset_index(drop=True)


def spent_by_round(run: Run) -> pd.DataFrame:
    """Returns what all clients had spent by the end of each round (the index, from 0): :data:`SPENT`."""
    clients = run.clients.assign(spent_bytes=run.clients["bytes_down"] + run.clients["bytes_up"])
    clients = clients.rename(columns={"macs": "spent_macs"})
    spent = clients.groupby("round")[list(SPENT[1:])].sum(min_count=1).reindex(run.rounds["round"])
    if spent.notna().any(axis=None):
        spent = spent.fillna(0)  # nobody took part, or all of them failed
    return spent.cumsum().assign(rounds=spent.index + 1)


def _total(run: Run) -> dict[str, float]:
    spent = spent_by_round(run)
    if spent.empty:
        return dict.fromkeys(SPENT, float("nan"))
    return {str(name): value for name, value in spent.iloc[-1].items()}


def _total_of_finetuning(run: Run, name: str) -> dict[str, float]:
    """Returns what a fine-tuning of all tiers has taken, with the training of the weights that it began with."""
    files = FinetuneFiles(run.folder / name)
    candidates = pd.DataFrame(files.rows("candidates"), columns=files.columns("candidates"))
    begun = _total(run) if files.settings().get("initial") == "supernet" else dict.fromkeys(SPENT, 0.0)
    return {
        "rounds": begun["rounds"] + candidates["rounds"].sum(),
        "spent_macs": begun["spent_macs"] + candidates["macs"].sum(),
        "spent_bytes": begun["spent_bytes"] + candidates[["bytes_down", "bytes_up"]].sum().sum(),
    }


def _selected(run: Run) -> dict[str, dict[str, float]]:
    """Returns what had been spent when each model of a pruned sequence had its weights, by architecture."""
    sequence = read_sequence(run.folder)
    if sequence is None:
        return {}
    initial, *others = sequence["models"]
    ends = {model["number"]: model["round"] for model in others}
    if others:  # the initial one was trained before the first iteration, if in this run
        ends[initial["number"]] = others[0]["first_round"] - 1
    spent = spent_by_round(run)
    nothing = dict.fromkeys(SPENT, 0.0)
    return {f"model: {number}": dict(spent.loc[end]) if end >= 0 else nothing for number, end in ends.items()}


def _on_servers_data(run: Run, name: str) -> bool:
    settings = SearchFiles(run.folder / name).settings()
    return settings.get("client") is None and not settings.get("federated")


def _searched(run: Run, name: str, metric: str) -> pd.DataFrame:
    """Returns the networks that a search evaluated; those of the tiers were tested."""
    files = SearchFiles(run.folder / name)
    evaluated = pd.DataFrame(files.rows("evaluations"), columns=files.columns("evaluations"))
    best = pd.DataFrame(files.rows("tiers"), columns=files.columns("tiers")).drop_duplicates("arch")
    tested = best.set_index("arch").get(f"test_{metric}", pd.Series(dtype=float))
    return evaluated.assign(val=evaluated[metric], test=evaluated["arch"].map(tested))


def _evaluated(run: Run, metric: str) -> pd.DataFrame:
    """Returns the subnets that a run evaluated in the end, and those of ``lit-fednas test``."""
    val, test = (run.subnets(split).set_index("arch") for split in ("val", "test"))
    table = val.combine_first(test).assign(val=val[metric], test=test[metric])
    return table.rename_axis("arch").reset_index()


def _finetuned(run: Run, name: str, metric: str) -> pd.DataFrame:
    files = FinetuneFiles(run.folder / name)
    table = pd.DataFrame(files.rows("candidates"), columns=files.columns("candidates"))
    # "macs" there are those of the training
    table = table.drop(columns="macs").rename(columns={"macs_per_example": "macs"})
    return table.assign(val=table[f"val_{metric}"], test=table[f"test_{metric}"])


def _named_networks(run: Run) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields the names by which networks are logged, with their architectures and costs."""
    table = pd.concat([run.subnets("val"), run.subnets("test")]).drop_duplicates("subnet")
    names = ["arch", *(name for name in COST_NAMES if name in table)]
    named = {row["subnet"]: {name: row[name] for name in names} for row in table.to_dict("records")}
    for added in (read_suite(run.folder), read_sequence(run.folder)):
        for model in () if added is None else added["models"]:
            costs = {name: model[name] for name in ("macs", "parameters", "bytes") if name in model}
            named.setdefault(f"model{model['number']}", {"arch": f"model: {model['number']}", **costs})
    yield from named.items()


def _stacked(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Returns tables below each other, with :data:`COLUMNS`, NaN where one has none."""
    table = pd.concat([one.reindex(columns=list(COLUMNS)) for one in tables if len(one)] or [pd.DataFrame()])
    table = table.reindex(columns=list(COLUMNS)).reset_index(drop=True)
    numbers = [name for name in COLUMNS if name != "arch"]
    return table.astype(dict.fromkeys(numbers, float))
