"""What a run writes into its folder: records round by round, costs, scores of clients, rounds to targets.

``rounds.jsonl`` has one JSON object per line and round, with the keys

* ``round``: from 0;
* ``metrics``: numbers by name, as they were logged (validation only in rounds that validated);
* ``clients``: a list of ``client``, ``arch`` (text), ``tier`` (where there are tiers), ``status``, ``reason``,
  ``num_examples``, ``num_seen``, ``num_steps``, ``loss`` (null without an update), ``macs``, ``bytes_down``,
  ``bytes_up``, ``seconds``;
* ``fastest``, in the round in which ``client.fast`` was measured: ``chosen``, ``settings``, ``threads``, and
  ``ratios``: the times of what was tried, as multiples of that of the settings as they were written.

All but ``seconds`` and ``fastest`` is the same in a resumed run and one that ran through. Readers skip keys that they
do not know and do without keys that are missing, so that old runs stay readable.

``ledger.json`` says what the run cost: ``rounds``, ``total`` (``macs``, ``bytes_down``, ``bytes_up``), ``independent``
(training the evaluated subnets one by one), ``times_less_computation``, ``times_less_communication``;
``secure_aggregation`` if it was asked for: what the run would have sent with it (``neighbours``, ``bytes_down``,
``bytes_up``, and ``times_bytes_up``, as a multiple of the total's); and ``after_training``: the costs of federated
searches and fine-tunings, by folder.

``inputs.json`` says what the network's inputs are: ``input_shape`` of one example, ``input_type`` and ``input_range``
as the data source has them, the ``mean`` and ``std`` by which they are normalised (null where they are not; those of
uint8 on the scale [0, 1]), ``class_names``; and ``metrics``: what its task reports, and whether higher is better.

``clients.csv`` has one row per client with the metrics of the network that it would use: ``client``, ``tier``,
``num_examples`` (of its test split), and those of the task: of classes ``accuracy``, ``loss``. In a search's or a
fine-tuning's folder that is the network of the client's tier. A run's own file (``deployed_accuracy``) also has
``arch``; ``tier`` is ``*`` without tiers.

``targets.csv`` has one row per metric and target: ``metric``, ``target``, ``round`` (the first that reached it,
counted from 1; empty if there is none), and ``macs``, ``bytes_down`` and ``bytes_up``: what all clients had spent
by the end of that round (empty without a ledger).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.errors import DataError
from lit_fednas.records.files import naming, plain_numbers, read_json, replace_json, replace_table, replace_text
from lit_fednas.records.measures import OF_CLASSES

ROUNDS_FILE = "rounds.jsonl"
LEDGER_FILE = "ledger.json"
INPUTS_FILE = "inputs.json"
CLIENTS_FILE = "clients.csv"
#: Before the metrics.
CLIENT_SCORE_COLUMNS = ("client", "tier", "num_examples")
TARGETS_FILE = "targets.csv"
TARGET_COLUMNS = ("metric", "target", "round", "macs", "bytes_down", "bytes_up")

_AFTER = "after_training"


def append_round(folder: Path, record: dict[str, Any]) -> None:
    """Adds a round's record to a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder / ROUNDS_FILE), open(folder / ROUNDS_FILE, "a") as file:
        file.write(_line(plain_numbers(record)))


def read_rounds(folder: Path) -> Iterator[dict[str, Any]]:
    """Reads a run's records; a last line that a kill cut short is left out.

    Yields:
        The records.

    Raises:
        DataError: A line is damaged.
    """
    path = folder / ROUNDS_FILE
    if not path.exists():
        return
    with open(path, errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith("\n"):
                try:
                    record = json.loads(line)
                    record["round"]
                except (ValueError, TypeError, KeyError):
                    raise DataError(f"{path}: line {number} is not the record of a round; remove it") from None
                yield record


def forget_from(folder: Path, round: int) -> None:
    """Drops the records of a round and all later ones, which a resumed run writes anew."""
    _ledger(folder)  # which is read again when the run has ended: damage is told before
    if (folder / ROUNDS_FILE).exists():
        kept = [_line(record) for record in read_rounds(folder) if record["round"] < round]
        replace_text(folder / ROUNDS_FILE, "".join(kept))


def write_ledger(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes the costs of training; keeps the costs of what came after it.

    Args:
        folder: The run's folder.
        summary: All keys of the ledger but ``after_training``.
    """
    after = _ledger(folder).get(_AFTER)
    replace_json(folder / LEDGER_FILE, {**summary, **({_AFTER: after} if after else {})})


def note_after_training(folder: Path, name: str, costs: Mapping[str, int]) -> None:
    """Adds what a search or a fine-tuning cost; does nothing for a run without a ledger.

    Args:
        folder: The run's folder.
        name: The folder of the search or fine-tuning in it.
        costs: ``macs``, ``bytes_down``, ``bytes_up``.
    """
    ledger = _ledger(folder)
    if "total" in ledger:
        replace_json(folder / LEDGER_FILE, {**ledger, _AFTER: {**ledger.get(_AFTER, {}), name: costs}})


def write_client_scores(folder: Path, rows: Iterable[Mapping[str, Any]], further: Sequence[str] = ()) -> None:
    """Writes ``clients.csv``.

    Args:
        folder: The folder of a run, a search or a fine-tuning.
        rows: One per client.
        further: Columns that the rows have besides.
    """
    rows = list(rows)
    metrics = [name for name in (rows[0] if rows else OF_CLASSES) if name not in (*CLIENT_SCORE_COLUMNS, *further)]
    replace_table(folder / CLIENTS_FILE, (*CLIENT_SCORE_COLUMNS, *metrics, *further), rows)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def _ledger(folder: Path) -> dict[str, Any]:
    return read_json(folder / LEDGER_FILE)
