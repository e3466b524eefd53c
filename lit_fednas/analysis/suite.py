"""How a suite of models grew (FedTrans, section 4): its tree, the losses, and who trained which model.

Read from ``suite.json`` (``lit_fednas.records.models``) and the rounds' records, in which a client's architecture
is ``model: 2``. Rounds count from 0; a model of round r was added after that round's server step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.formatting import short, text_table
from lit_fednas.records import SUITE_FILE, read_suite, step_words

#: The column of all clients together in :func:`model_losses`.
ALL_CLIENTS = "all"
_LONGEST = 44  # characters of what was done, in a figure


def read_models(run: Run) -> list[dict[str, Any]]:
    """The models as ``suite.json`` has them.

    Raises:
        DataError: The run has no such file, or it is broken.
    """
    found = read_suite(run.folder)
    if found is None:
        raise DataError(
            f"{run.folder / SUITE_FILE}: is not there; only runs with "
            f"lit_fednas.callbacks.TransformOnConvergence write it"
        )
    models: list[dict[str, Any]] = found["models"]
    return models


def suite_table(run: Run) -> pd.DataFrame:
    """The models, with who trained them.

    Returns:
        ``number``, ``parent``, ``round`` (both without a value for the first), ``macs``, ``parameters``,
        ``bytes``, ``clients`` (that have trained it at least once), ``trainings`` (how often they did), ``done``
        (what was done to the parent, in words).

    Raises:
        DataError: The run has no ``suite.json``.
    """
    trained = _trained(run)
    rows = []
    for model in read_models(run):
        own = trained[_mask(trained, [model["number"] in numbers for numbers in trained["numbers"]])]
        kept = {name: model[name] for name in ("number", "parent", "round", "macs", "parameters", "bytes")}
        counts = {"clients": own["client"].nunique(), "trainings": len(own)}
        rows.append({**kept, **counts, "done": step_words(model["steps"])})
    table = pd.DataFrame(rows)
    return table.astype({"parent": "Int64", "round": "Int64"})


def suite_text(table: pd.DataFrame) -> str:
    """A :func:`suite_table` as aligned text.

    Example:
        >>> print(suite_text(pd.DataFrame({"number": [0], "parent": [pd.NA], "round": [pd.NA], "macs": [9000],
        ...     "parameters": [34], "bytes": [136], "clients": [8], "trainings": [20], "done": [""]})))
        model  from  round  MACs  parameters  bytes  clients  trainings  done
        0         –      –   9 k          34  136 B        8         20     –
    """
    head = ["model", "from", "round", "MACs", "parameters", "bytes", "clients", "trainings", "done"]
    body = [
        [
            *(str(row.number), _or_dash(row.parent), _or_dash(row.round)),
            *(short(row.macs), short(row.parameters), short(row.bytes, "B")),
            *(str(row.clients), str(row.trainings), row.done or "–"),
        ]
        for row in table.itertuples()
    ]
    return text_table(head, body)


def model_losses(run: Run, window: int = 1) -> pd.DataFrame:
    """Mean loss in the clients' training, weighted by the examples that went through a client's network.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), and :data:`ALL_CLIENTS`; NaN where untrained.
    """
    trained = _trained(run)
    trained["sum"] = trained["loss"] * trained["num_seen"]
    rounds = pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")
    groups = {name: rows for _, (name, rows) in sorted(_by_model(trained).items())}
    means = {}
    for name, rows in {**groups, ALL_CLIENTS: trained}.items():
        sums = rows.groupby("round")[["sum", "num_seen"]].sum().reindex(rounds, fill_value=0)
        sums = sums.rolling(window, min_periods=1).sum()
        means[name] = sums["sum"] / sums["num_seen"].where(sums["num_seen"] > 0)
    return pd.DataFrame(means, index=rounds)


def model_clients(run: Run, window: int = 1) -> pd.DataFrame:
    """How many clients have trained each model.

    Args:
        run: The run.
        window: Rounds that are averaged: each and those before it.

    Returns:
        A row per round, a column per model (``model 2``), in their order.
    """
    rounds = pd.RangeIndex(int(run.clients["round"].max()) + 1 if len(run.clients) else 0, name="round")
    counts = {
        name: rows.groupby("round").size().reindex(rounds, fill_value=0)
        for _, (name, rows) in sorted(_by_model(_trained(run)).items())
    }
    return pd.DataFrame(counts, index=rounds, dtype=float).rolling(window, min_periods=1).mean()


def when(model: Mapping[str, Any]) -> str:
    """When a model was added.

    Example:
        >>> when({"round": 12}), when({"round": None})
        ('round 12', 'start')
    """
    return "start" if model["round"] is None else f"round {model['round']}"


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters.

    Example:
        >>> shortened("widen conv1, conv2", 12)
        'widen conv1…'
    """
    return text if len(text) <= most else text[: most - 1].rstrip(" ,;") + "…"


def _trained(run: Run) -> pd.DataFrame:
    """The clients' rows that ended with an update of models of the suite, and which these are: ``numbers``."""
    rows = run.clients[run.clients["status"] == "ok"].copy()
    rows["numbers"] = pd.Series([_numbers(str(arch)) for arch in rows["arch"]], index=rows.index, dtype=object)
    return rows[_mask(rows, [len(numbers) > 0 for numbers in rows["numbers"]])]


def _mask(rows: pd.DataFrame, chosen: Sequence[bool]) -> pd.Series:
    """Which rows; of no rows, too, where a bare list would choose columns."""
    return pd.Series(chosen, index=rows.index, dtype=bool)


def _by_model(trained: pd.DataFrame) -> dict[tuple[int, ...], tuple[str, pd.DataFrame]]:
    """The rows of each model, or of each combination that was trained side by side, and its name."""
    return {_numbers(str(arch)): (str(arch).replace(":", "", 1), rows) for arch, rows in trained.groupby("arch")}


def _numbers(arch: str) -> tuple[int, ...]:
    """The models that an architecture's text, or a name made of it, stands for; none if it is of another kind."""
    match = re.fullmatch(r"model:? (\d+(?:,\d+)*)", arch)
    return tuple(int(word) for word in match[1].split(",")) if match else ()


def _or_dash(value: Any) -> str:
    return "–" if value is pd.NA else str(value)
