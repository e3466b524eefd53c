"""Models that a run grew (FedTrans, section 4) or pruned step by step (FedNAS, section 4), as tables.

Of a suite, rounds count from 0; a model of round r was added after that round's server step. Of a sequence, costs are
those of the short-term fine-tuning without the initial model's training (FedNAS, section 5.3), on the average over all
clients of the population: the paper's "avg uplink cost per client" does not say over which clients, and a cost that
falls with the number of groups (Table 4) is one over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import SEQUENCE_FILE, SUITE_FILE, read_sequence, read_suite, step_words

#: The column of all clients together in :func:`model_rounds`.
ALL_CLIENTS = "all"
MEGABYTE = 1e6
_GROWN = ["number", "parent", "round", "macs", "parameters", "bytes"]
_KEPT = ["number", "round", "unit", "budget", "resource", "macs", "parameters", "bytes", "accuracy", "rounds"]


def suite_table(run: Run) -> pd.DataFrame:
    """Returns the models, and how often they were trained."""
    suite = read_suite(run.folder)
    if suite is None:
        raise DataError(
            f"{run.folder / SUITE_FILE}: is missing; only runs with "
            f"lit_fednas.callbacks.TransformOnConvergence write it"
        )
    trained = _trained(run).explode("numbers")
    clients = trained.groupby("numbers")["client"].agg(clients="nunique", trainings="size")
    models = pd.DataFrame(suite["models"])
    table = models[_GROWN].assign(done=models["steps"].map(step_words))
    table = table.join(clients.reindex(models["number"], fill_value=0).reset_index(drop=True))
    return table.astype({"parent": "Int64", "round": "Int64"})


def model_rounds(run: Run, window: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns each model's losses and clients, round by round."""
    trained = _trained(run).assign(clients=1.0)
    trained["sum"] = trained["loss"] * trained["num_seen"]
    # of each model, or of each combination that was trained side by side
    groups = {f"model {','.join(map(str, key))}": rows for key, rows in trained.groupby("numbers", sort=True)}
    rounds = pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")
    losses, clients = {}, {}
    for name, rows in {**groups, ALL_CLIENTS: trained}.items():
        sums = rows.groupby("round")[["sum", "num_seen", "clients"]].sum().reindex(rounds, fill_value=0)
        within = sums.rolling(window, min_periods=1)
        seen = within["num_seen"].sum()
        losses[name] = within["sum"].sum() / seen.where(seen > 0)
        clients[name] = within["clients"].mean()
    return pd.DataFrame(losses, index=rounds), pd.DataFrame(clients, index=rounds)[list(groups)]


def _trained(run: Run) -> pd.DataFrame:
    """Returns the clients that ended with an update of models of the suite, and these models' ``numbers``."""
    numbers = run.clients["arch"].astype(str).str.extract(r"^model: (\d+(?:,\d+)*)$")[0]
    rows = run.clients[(run.clients["status"] == "ok") & numbers.notna()]
    return rows.assign(numbers=[tuple(map(int, text.split(","))) for text in numbers[rows.index]])


def sequence_of(run: Run) -> dict[str, Any]:
    """Returns the sequence as ``sequence.json`` has it."""
    sequence = read_sequence(run.folder)
    if sequence is None:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: is missing; only runs with lit_fednas.callbacks.PruneByBudgets write it"
        )
    return sequence


def sequence_table(run: Run) -> pd.DataFrame:
    """Returns the models of a run, a row each."""
    sequence = sequence_of(run)
    models = pd.DataFrame(sequence["models"])
    spent = client_costs(sequence)
    spent.iloc[0] = 0.0
    spent = spent.cumsum()
    table = models[_KEPT].assign(
        unit=models["unit"].fillna(""),
        share=models["resource"] / sequence["initial"],
        candidates=models["candidates"].map(len),
        client_macs=spent["macs"],
        up_mb=spent["bytes_up"] / MEGABYTE,
        down_mb=spent["bytes_down"] / MEGABYTE,
    )
    return table.astype({"round": "Int64", "budget": float, "accuracy": float})


def client_costs(sequence: Mapping[str, Any]) -> pd.DataFrame:
    """Returns what a client spent on average in each iteration, a row each; the first row is the initial model's."""
    return pd.DataFrame([model["costs"] for model in sequence["models"]]) / sequence["clients"]


def kept_units(run: Run) -> pd.DataFrame:
    """Returns how many units every layer of every model has (FedNAS, Fig. 5)."""
    sequence = sequence_of(run)
    names = {
        group: unit if len(groups) == 1 else group for unit, groups in sequence["units"].items() for group in groups
    }
    sizes = pd.DataFrame({model["number"]: model["sizes"] for model in sequence["models"]})
    return sizes.loc[list(names)].rename(index=names)
