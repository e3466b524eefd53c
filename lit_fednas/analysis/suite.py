"""How a suite of models grew (FedTrans, section 4): the models, the losses, and which clients trained which model.

Read from ``suite.json`` (``lit_fednas.records``) and the rounds' records, in which a client's architecture
is ``model: 2``. Rounds count from 0; a model of round r was added after that round's server step.
"""

from __future__ import annotations

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import SUITE_FILE, read_suite, step_words

#: The column of all clients together in :func:`model_rounds`.
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


def model_rounds(run: Run, window: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns each model's losses and clients, round by round.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        The mean loss in the clients' training, weighted by the examples that a client trained on (NaN where
        untrained), and how many clients have trained the model: a row per round, a column per model (``model 2``);
        the losses have :data:`ALL_CLIENTS`, too.
    """
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
