"""What a run writes down, round by round.

A run's folder holds ``rounds.jsonl``: one JSON object a line and round, with the keys

* ``round``: from 0;
* ``metrics``: numbers by name, as they were logged (validation only in rounds that validated);
* ``clients``: a list of ``client``, ``arch`` (text), ``tier`` (where there are tiers), ``status``, ``reason``,
  ``num_examples``, ``num_seen``, ``num_steps``, ``loss`` (null without an update), ``macs``, ``bytes_down``,
  ``bytes_up``, ``seconds``.

All but ``seconds`` is the same in a resumed run and one that ran through. Readers skip keys that they do not
know and do without keys that are missing, so that old runs stay readable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_fednas.records.files import plain_numbers

ROUNDS_FILE = "rounds.jsonl"


def append_round(folder: Path, record: dict[str, Any]) -> None:
    """Adds a round's record to a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ROUNDS_FILE, "a") as file:
        file.write(json.dumps(plain_numbers(record), separators=(",", ":")) + "\n")


def read_rounds(folder: Path) -> Iterator[dict[str, Any]]:
    """Reads a run's records; a last line that a kill cut short is left out."""
    path = folder / ROUNDS_FILE
    if not path.exists():
        return
    with open(path) as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def forget_from(folder: Path, round: int) -> None:
    """Drops the records of a round and all later ones, which a resumed run writes anew."""
    kept = [record for record in read_rounds(folder) if record["round"] < round]
    if not (folder / ROUNDS_FILE).exists():
        return
    temporary = folder / f".{ROUNDS_FILE}.part"
    with open(temporary, "w") as file:
        for record in kept:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    os.replace(temporary, folder / ROUNDS_FILE)
