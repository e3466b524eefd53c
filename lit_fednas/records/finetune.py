"""What a fine-tuning writes down.

A run's folder holds ``finetune/`` (or another folder, if it was given a name):

* ``settings.json``: ``seed``, ``rounds``, ``initial``, ``tier_aware``, ``architectures``, ``search``,
  ``supernet``, ``weights`` (of the supernet), ``tiers`` (``name``, ``at_most``), ``eligible`` (number of clients
  by tier), ``candidates`` (architectures by their run's folder), ``complete`` (false until the end was reached);
* ``candidates.csv``: per network that was trained: ``tier``, ``number`` (from 0), ``arch``, ``eligible``
  (clients), ``rounds``, ``val_accuracy_before``, ``val_loss_before``, ``val_accuracy``, ``val_loss``, ``macs`` (of
  all forward passes), ``bytes_down``, ``bytes_up``;
* ``tiers.csv``: the best candidate of every tier: the same columns, and ``test_accuracy``, ``test_loss``,
  ``parameters``, ``bytes`` (sent one way), ``macs_per_example``;
* ``runs/<tier>-<number>/``: each candidate's training, as any run's folder (``lit_fednas.records.rounds``), and
  ``runs/<tier>-<number>-head/`` that of its classifier alone before;
* ``tiers/<tier>/``: its network, as a search writes it (``lit_fednas.records.search``);
* ``clients.csv`` (``lit_fednas.records.clients``), where clients hold test data of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lit_fednas.records.files import replace_table, replace_text
from lit_fednas.records.search import SearchFiles

TIERS_FILE = "tiers.csv"

CANDIDATE_COLUMNS = (
    *("tier", "number", "arch", "eligible", "rounds"),
    *("val_accuracy_before", "val_loss_before", "val_accuracy", "val_loss"),
    *("macs", "bytes_down", "bytes_up"),
)
FINETUNED_COLUMNS = (
    *CANDIDATE_COLUMNS,
    *("test_accuracy", "test_loss", "macs_per_example", "parameters", "bytes"),
)


class FinetuneFiles:
    """Reads and writes a fine-tuning's folder.

    Args:
        folder: Where it is, usually ``<run>/finetune``.

    Attributes:
        networks: Where the tiers' networks are.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.networks = SearchFiles(self.folder)

    def settings(self) -> dict[str, Any] | None:
        """``settings.json``, if it was begun."""
        path = self.folder / "settings.json"
        return json.loads(path.read_text()) if path.exists() else None

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes ``settings.json``."""
        replace_text(self.folder / "settings.json", json.dumps(settings, indent=1) + "\n")

    def write_candidates(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes ``candidates.csv``."""
        replace_table(self.folder / "candidates.csv", CANDIDATE_COLUMNS, rows)

    def write_tiers(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes ``tiers.csv``."""
        replace_table(self.folder / TIERS_FILE, FINETUNED_COLUMNS, rows)
