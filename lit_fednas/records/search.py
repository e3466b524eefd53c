"""What a search after training writes down.

A run's folder holds ``search/`` (or another folder, if the search was given a name):

* ``settings.json``: ``seed``, ``method`` (class and its settings), ``evaluations`` (per tier), ``cost`` (the one
  traded against accuracy), ``tiers`` (``name``, ``at_most`` and ``above``: limits by cost), ``supernet``,
  ``checkpoint``, ``num_examples`` (of the validation data), ``federated`` (how clients scored, or null),
  ``communication`` (the totals of ``federated.csv``, once it is there), ``reference`` (the objective cost that
  hypervolumes are divided by, per tier), ``latency`` (how it was measured, or null), ``latency_source`` (what of
  it must stay when a search goes on), ``complete`` (false until the end was reached);
* ``evaluations.csv``: one row per distinct architecture, in the order of their evaluation: ``number`` (from 0),
  ``arch`` (text), ``encoding`` (the genes, joined by ``-``), ``accuracy`` and ``loss`` on the validation data, the
  costs, ``seconds``;
* ``latencies.csv``: every latency that was measured or predicted, also of architectures that were not evaluated
  then: ``arch``, ``latency_ms``;
* ``history.csv``: per generation: ``tier``, ``generation``, ``evaluations`` (distinct valid ones of this tier so
  far), ``best_accuracy`` among them, ``hypervolume``;
* ``federated.csv`` (only where clients score): per generation what its scores cost: ``tier``, ``generation``,
  ``evaluation_rounds`` (each asks as many clients as a cohort has), ``clients`` that were asked, ``architectures``
  that they scored (those of no generation before), ``supernet_bytes`` (of what holds these architectures),
  ``bytes_down`` and ``bytes_up`` of all clients together, ``macs`` of their forward passes;
* ``front.csv``: the non-dominated among the evaluated architectures that fit a tier: ``tier`` and the columns of
  ``evaluations.csv``; the tier ``*`` is the front of all;
* ``tiers.csv``: the best of every tier: ``tier``, ``arch``, ``val_accuracy``, ``val_loss``, ``test_accuracy``,
  ``test_loss``, the costs, ``evaluations``, ``hypervolume``;
* ``tiers/<tier>/weights.pt`` (a ``state_dict`` of the subnet) and ``tiers/<tier>/architecture.json``
  (:class:`TierModel`);
* ``pareto.png``.

Costs are ``macs`` (of one example), ``parameters``, ``bytes`` (sent one way), ``activation_bytes`` (the peak while
one example runs) and ``latency_ms``, which is empty where it was neither measured nor predicted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lit_fednas.records.files import replace_table, replace_text

COST_NAMES = ("macs", "parameters", "bytes", "activation_bytes", "latency_ms")

EVALUATION_COLUMNS = ("number", "arch", "encoding", "accuracy", "loss", *COST_NAMES, "seconds")

SEARCH_FILES = {
    "evaluations": EVALUATION_COLUMNS,
    "latencies": ("arch", "latency_ms"),
    "history": ("tier", "generation", "evaluations", "best_accuracy", "hypervolume"),
    "federated": (
        *("tier", "generation", "evaluation_rounds", "clients", "architectures", "supernet_bytes"),
        *("bytes_down", "bytes_up", "macs"),
    ),
    "front": ("tier", *EVALUATION_COLUMNS),
    "tiers": (
        *("tier", "arch", "val_accuracy", "val_loss", "test_accuracy", "test_loss"),
        *COST_NAMES,
        *("evaluations", "hypervolume"),
    ),
}

_TEXT_COLUMNS = {"arch", "encoding", "tier"}
_WHOLE_COLUMNS = {
    *("number", "generation", "evaluations", "macs", "parameters", "bytes", "activation_bytes"),
    *("evaluation_rounds", "clients", "architectures", "supernet_bytes", "bytes_down", "bytes_up"),
}


@dataclass(frozen=True)
class TierModel:
    """What ``architecture.json`` says of a tier's network.

    Attributes:
        tier: The tier's name.
        arch: The architecture, as its space writes and reads it.
        encoding: Its genes.
        supernet: Class and constructor arguments that are known, for a reader.
        input_shape: Of one example.
        num_classes: Width of the output.
        recalibrated: Whether the norms hold running statistics that were gathered anew.
        costs: By name, those that are known.
        metrics: ``val_accuracy`` and the like.
        finetuned: Whether the weights were trained after the search, so that they are not the supernet's.
    """

    tier: str
    arch: str
    encoding: list[int]
    supernet: str
    input_shape: list[int]
    num_classes: int
    recalibrated: bool
    costs: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    finetuned: bool = False


class SearchFiles:
    """Reads and writes a search's folder.

    Args:
        folder: Where it is, usually ``<run>/search``.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Whether a search was begun here."""
        return (self.folder / "settings.json").exists()

    def settings(self) -> dict[str, Any]:
        """``settings.json``."""
        return json.loads((self.folder / "settings.json").read_text())

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes ``settings.json``."""
        replace_text(self.folder / "settings.json", json.dumps(settings, indent=1) + "\n")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Reads one of :data:`SEARCH_FILES`: numbers as numbers, empty cells as ``None``; none if not there.

        A last line that a kill cut short is left out.
        """
        path = self.folder / f"{table}.csv"
        if not path.exists():
            return []
        with open(path, newline="") as file:
            whole = (line for line in file if line.endswith("\n"))
            return [{name: _read(name, cell) for name, cell in row.items()} for row in csv.DictReader(whole)]

    def write(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes a table as a whole; a kill leaves the old one or the new one."""
        replace_table(self.folder / f"{table}.csv", SEARCH_FILES[table], rows)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows to a table that :meth:`write` began."""
        with open(self.folder / f"{table}.csv", "a", newline="") as file:
            csv.DictWriter(file, SEARCH_FILES[table], lineterminator="\n").writerows(rows)

    @property
    def tier_names(self) -> list[str]:
        """The tiers whose network was written."""
        return sorted(path.parent.name for path in self.folder.glob("tiers/*/architecture.json"))

    def tier_folder(self, tier: str) -> Path:
        """Where a tier's network is kept."""
        return self.folder / "tiers" / tier

    def tier_model(self, tier: str) -> TierModel:
        """A tier's ``architecture.json``."""
        return TierModel(**json.loads((self.tier_folder(tier) / "architecture.json").read_text()))

    def write_tier_model(self, model: TierModel) -> None:
        """Writes a tier's ``architecture.json``."""
        path = self.tier_folder(model.tier) / "architecture.json"
        replace_text(path, json.dumps(asdict(model), indent=1) + "\n")


def _read(name: str, cell: str | None) -> Any:
    if cell is None or cell == "":
        return None
    if name in _TEXT_COLUMNS:
        return cell
    return int(cell) if name in _WHOLE_COLUMNS else float(cell)
