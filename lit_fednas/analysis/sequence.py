"""How a network was pruned step by step: the models, and what they cost (FedNAS, section 4).

Read from ``sequence.json`` (``lit_fednas.records``). Costs are those of the short-term fine-tuning,
without those of the initial model's training (section 5.3), on the average over all clients of the population: the
paper's "avg uplink cost per client" does not say over which clients, and a cost that falls with the number of
groups (Table 4) is one over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import SEQUENCE_FILE, read_sequence

MEGABYTE = 1e6
_KEPT = ["number", "round", "unit", "budget", "resource", "macs", "parameters", "bytes", "accuracy", "rounds"]


def sequence_of(run: Run) -> dict[str, Any]:
    """Returns the sequence as ``sequence.json`` has it.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    sequence = read_sequence(run.folder)
    if sequence is None:
        raise DataError(
            f"{run.folder / SEQUENCE_FILE}: is missing; only runs with lit_fednas.callbacks.PruneByBudgets write it"
        )
    return sequence


def sequence_table(run: Run) -> pd.DataFrame:
    """Returns the models of a run, a row each.

    Args:
        run: The run.

    Returns:
        ``number``, ``round`` (after which it was selected), ``unit`` (that lost filters), ``budget`` (without
        a value, or empty, for the initial one), ``resource``, ``share`` (of the initial resource), ``macs``,
        ``parameters``, ``bytes``, ``accuracy`` (from 0 to 1, on the clients' validation data; NaN where nobody
        tested), ``rounds``, ``candidates`` (how many), and what a client has spent on the average since the first
        iteration began: ``client_macs`` (of forward passes), ``up_mb``, ``down_mb`` (10^6 bytes).

    Raises:
        DataError: The run has no ``sequence.json``, or it is broken.
    """
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
    """Returns what a client spent on average in each iteration, a row each; the first row is the initial model's.

    Example:
        >>> costs = {"macs": 600, "bytes_up": 30, "bytes_down": 90}
        >>> client_costs({"models": [{"costs": costs}], "clients": 3}).to_dict("records")
        [{'macs': 200.0, 'bytes_up': 10.0, 'bytes_down': 30.0}]
    """
    return pd.DataFrame([model["costs"] for model in sequence["models"]]) / sequence["clients"]


def kept_units(run: Run) -> pd.DataFrame:
    """Returns how many units every layer of every model has.

    Args:
        run: The run.

    Returns:
        A row per layer (a prunable group of units), in the order of the network, a column per model (its number).
        A layer has its unit's name if that has one group.

    Raises:
        DataError: The run has no ``sequence.json``.
    """
    sequence = sequence_of(run)
    names = {
        group: unit if len(groups) == 1 else group for unit, groups in sequence["units"].items() for group in groups
    }
    sizes = pd.DataFrame({model["number"]: model["sizes"] for model in sequence["models"]})
    return sizes.loc[list(names)].rename(index=names)


def client_accuracies(run: Run, finetune: str = "finetune") -> pd.DataFrame:
    """Returns the accuracy of a sequence's models on the clients' test splits, pooled over the clients.

    Returns:
        ``number``, ``clients_before`` and ``clients_after`` (fine-tuning; NaN without), a row per tested model.
    """
    names = {"accuracy_before": "clients_before", "accuracy": "clients_after"}
    table = run.tested(finetune)
    return table.assign(number=_numbers(table["arch"])).rename(columns=names)[["number", *names.values()]]


def _numbers(archs: pd.Series) -> pd.Series:
    """Returns the numbers of models that are written as ``model: 3``; NaN for other architectures."""
    return archs.astype(str).str.extract(r"^model: (\d+)$", expand=False).astype(float)
