"""``ledger.json`` in a run's folder: what the run cost.

``rounds``, ``total`` (``macs``, ``bytes_down``, ``bytes_up``), ``by_client``, ``independent`` (training the
evaluated subnets one by one), ``times_less_computation``, ``times_less_communication``; and ``after_training``:
what federated searches and fine-tunings cost, by the names of their folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_fednas.records.files import replace_text

_AFTER = "after_training"


def write_ledger(run: Path, summary: Mapping[str, Any]) -> None:
    """Writes a training's costs; what came after it, and was paid for, stays."""
    after = _read(run).get(_AFTER)
    _write(run, {**summary, **({_AFTER: after} if after else {})})


def note_after_training(run: Path, name: str, costs: Mapping[str, int]) -> None:
    """Adds what a search or a fine-tuning cost; does nothing for a run without a ledger.

    Args:
        run: The run's folder.
        name: The folder of the search or fine-tuning.
        costs: ``macs``, ``bytes_down``, ``bytes_up``.
    """
    ledger = _read(run)
    if ledger:
        _write(run, {**ledger, _AFTER: {**ledger.get(_AFTER, {}), name: dict(costs)}})


def _read(run: Path) -> dict[str, Any]:
    path = run / "ledger.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _write(run: Path, ledger: Mapping[str, Any]) -> None:
    replace_text(run / "ledger.json", json.dumps(ledger, indent=1) + "\n")
