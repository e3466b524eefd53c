"""What is written of single clients: their accuracy with the network that they would use.

``clients.csv`` in a search's or a fine-tuning's folder, where it is their tier's network, has one row per client
that holds examples for it: ``client``, ``tier``, ``num_examples`` (of its own test split), ``accuracy``, ``loss``.
In a run's own folder (``deployed_accuracy``) there is ``arch`` too, and ``tier`` is ``*`` if there are no tiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.records.files import replace_table

CLIENTS_FILE = "clients.csv"
CLIENT_SCORE_COLUMNS = ("client", "tier", "num_examples", "accuracy", "loss")


def write_client_scores(folder: Path, rows: Iterable[Mapping[str, Any]], further: Sequence[str] = ()) -> None:
    """Writes the clients' rows.

    Args:
        folder: Where.
        rows: One per client.
        further: Columns that the rows have besides.
    """
    replace_table(folder / CLIENTS_FILE, (*CLIENT_SCORE_COLUMNS, *further), rows)
