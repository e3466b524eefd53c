"""What is written of single clients: their accuracy with the network that their tier gets.

``clients.csv`` in a search's or a fine-tuning's folder has one row per client that holds examples for it:
``client``, ``tier``, ``num_examples`` (of its own test split), ``accuracy``, ``loss``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lit_fednas.records.files import replace_table

CLIENTS_FILE = "clients.csv"
CLIENT_SCORE_COLUMNS = ("client", "tier", "num_examples", "accuracy", "loss")


def write_client_scores(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the clients' rows."""
    replace_table(folder / CLIENTS_FILE, CLIENT_SCORE_COLUMNS, rows)
