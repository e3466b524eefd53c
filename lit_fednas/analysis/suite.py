"""How a suite of models grew (FedTrans, section 4): the models, the losses, and which clients trained which model.

Read from ``suite.json`` (``lit_fednas.records.models``) and the rounds' records, in which a client's architecture
is ``model: 2``. Rounds count from 0; a model of round r was added after that round's server step.
"""

from __future__ import annotations

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import SUITE_FILE, read_suite, step_words

#: The column of all clients together in :func:`model_losses`.
ALL_CLIENTS = "all"
_COLUMNS = ["number", "parent", "round", "macs", "parameters", "bytes"]


def suite_table(run: Run) -> pd.DataFrame:
    """Returns the models, and how often they were trained.

    Args:
        run: The run.

    Returns:
        ``number``, ``parent``, ``round`` (both without a value for the first), ``macs``, ``parameters``,
        ``bytes``, ``clients`` (that have trained it at least once), ``trainings`` (how often they did), ``done``
        (what was done to the parent, in words).

    Raises:
        DataError: The run has no ``suite.json``, or it is broken.
    """
    suite = read_suite(run.folder)
    if suite is None:
        raise DataError(
            f"{run.folder / SUITE_FILE}: is missing; only runs with "
            f"lit_fednas.callbacks.TransformOnConvergence write it"
        )
    trained = _trained(run).explode("numbers")
    clients = trained.groupby("numbers")["client"].agg(clients="nunique", trainings="size")
    models = pd.DataFrame(suite["models"])
    table = models[_COLUMNS].assign(done=models["steps"].map(step_words))
    table = table.join(clients.reindex(models["number"], fill_value=0).reset_index(drop=True))
    return table.astype({"parent": "Int64", "round": "Int64"})


def model_losses(run: Run, window: int = 1) -> pd.DataFrame:
    """Returns the mean loss in the clients' training, weighted by the examples that a client trained on.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), and :data:`ALL_CLIENTS`; NaN where untrained.
    """
    trained = _trained(run)
    trained["sum"] = trained["loss"] * trained["num_seen"]
    means = {}
    for name, rows in {**_by_model(trained), ALL_CLIENTS: trained}.items():
        sums = rows.groupby("round")[["sum", "num_seen"]].sum().reindex(_rounds(run), fill_value=0)
        sums = sums.rolling(window, min_periods=1).sum()
        means[name] = sums["sum"] / sums["num_seen"].where(sums["num_seen"] > 0)
    return pd.DataFrame(means, index=_rounds(run))


def model_clients(run: Run, window: int = 1) -> pd.DataFrame:
    """Returns how many clients have trained each model.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), in their order.
    """
    groups = _by_model(_trained(run))
    counts = {
        name: rows.groupby("round").size().reindex(_rounds(run), fill_value=0) for name, rows in groups.items()
    }
    return pd.DataFrame(counts, index=_rounds(run), dtype=float).rolling(window, min_periods=1).mean()


def _rounds(run: Run) -> pd.RangeIndex:
    return pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")


def _trained(run: Run) -> pd.DataFrame:
    """Returns the clients that ended with an update of models of the suite, and these models' ``numbers``."""
    numbers = run.clients["arch"].astype(str).str.extract(r"^model: (\d+(?:,\d+)*)$")[0]
    rows = run.clients[(run.clients["status"] == "ok") & numbers.notna()]
    return rows.assign(numbers=[tuple(map(int, text.split(","))) for text in numbers[rows.index]])


def _by_model(trained: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Returns the rows of each model, or of each combination that was trained side by side, by its name."""
    return {
        f"model {','.join(map(str, numbers))}": rows for numbers, rows in trained.groupby("numbers", sort=True)
    }
