"""The files of a search and of a fine-tuning: settings, tables, and the network of every tier."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from math import nan, sqrt
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from lit_fednas.errors import ConfigError
from lit_fednas.records.files import (
    naming,
    read_json,
    read_table,
    reading,
    replace_json,
    replace_table,
    seal,
    table_text,
    unseal,
)
from lit_fednas.records.forms import SETTINGS, TIER_MODEL
from lit_fednas.records.run import CLIENTS_FILE, OF_CLASSES, error

CostName = Literal["macs", "parameters", "bytes", "activation_bytes", "latency_ms"]
#: In place of a tier's name: all tiers together.
ALL_TIERS = "*"

COST_NAMES: tuple[str, ...] = get_args(CostName)
#: What a tier's network is.
MODEL_FILE = "architecture.json"

_EVALUATION = ("number", "arch", "{each}", *COST_NAMES, "seconds")

_FINETUNED = (
    *("tier", "number", "arch", "eligible", "rounds", "val_{each}_before", "val_{each}"),
    *("macs", "bytes_down", "bytes_up", "test_{each}", "macs_per_example", "parameters", "bytes"),
)

#: Of a folder that has no settings yet.
_BY_ACCURACY: dict[str, Any] = {"metrics": OF_CLASSES, "metric": next(iter(OF_CLASSES))}

_USUAL = ("search", "finetune")  # folders' names
#: Fewer pairs have a rank correlation that says nothing: of four, one in twelve random orders is the same or reversed.
_LEAST_RANKED = 5

#: Tables to which rows are added one by one.
_GROWING = {"evaluations", "latencies"}
_TEXT_COLUMNS = {"arch", "tier"}
WHOLE_COLUMNS = {
    *("number", "generation", "evaluations", "macs", "parameters", "bytes", "activation_bytes"),
    *("evaluation_rounds", "clients", "architectures", "supernet_bytes", "bytes_down", "bytes_up"),
    *("eligible", "rounds", "macs_per_example", "examples", "client", "num_examples"),
}
_FILLED = _TEXT_COLUMNS | WHOLE_COLUMNS


@dataclass(frozen=True)
class TierModel:
    """The content of ``architecture.json``: what a tier's network is."""

    tier: str  # the tier's name
    arch: str  # the architecture, as its space writes and reads it
    encoding: list[int]  # its genes
    supernet: str  # the supernet's class, for a reader
    input_shape: list[int]  # of one example
    num_classes: int  # width of the output
    recalibrated: bool  # whether the norms hold running statistics that were gathered anew
    costs: dict[str, float] = field(default_factory=dict)  # by name, those that are known
    metrics: dict[str, float] = field(default_factory=dict)  # ``val_accuracy`` and the like
    finetuned: bool = False  # whether the weights were trained after the search, so that they are not the supernet's
    # what a drawing shows: per stage its blocks, each with its choice and its size, or null for one that is left out
    stages: Sequence[Sequence[Sequence[Any] | None]] = ()


class TierFiles:
    """Reads and writes the folder of a search or a fine-tuning, usually ``<run>/search`` or ``<run>/finetune``."""

    #: By table, its columns; ``{each}`` stands for each metric, ``{metric}`` for the one that counts.
    tables: ClassVar[Mapping[str, Sequence[str]]] = {}
    #: The key by which its ``settings.json`` is known.
    known_by: ClassVar[str] = "method"
    #: What the folder holds and the setting that names it, for errors.
    content: ClassVar[str] = "search"
    name_field: ClassVar[str] = "search.name"

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._settings_file = self.folder / "settings.json"

    @classmethod
    def within(cls, run: Path) -> list[Self]:
        """Returns all of this kind in a run's folder: the one of the usual name first, the others by name."""
        found = [cls(path.parent) for path in run.glob("*/settings.json")]
        found = [files for files in found if cls.known_by in files.settings()]
        return sorted(found, key=lambda files: (files.folder.name not in _USUAL, files.folder.name))

    def exists(self) -> bool:
        """Returns whether anything was begun here."""
        return self._settings_file.exists()

    def settings(self) -> dict[str, Any]:
        """Reads ``settings.json``; empty if nothing was begun."""
        settings = read_json(self._settings_file, SETTINGS)
        with reading(self._settings_file):
            if settings and settings["metric"] not in settings["metrics"]:
                raise ValueError(f"metric {settings['metric']!r} is not measured")
        return settings

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes ``settings.json``."""
        replace_json(self._settings_file, settings)

    def finish(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings of a command that has ended, and keeps the checksums of its files."""
        self.write_settings({**settings, "complete": True})
        seal(self.folder, self._settings_file.name, CLIENTS_FILE, *(self._table(table).name for table in self.tables))
        for tier in self.tier_names:
            seal(self.tier_folder(tier), MODEL_FILE)

    def columns(self, table: str) -> tuple[str, ...]:
        """Returns a table's columns, which depend on the metrics in ``settings.json`` (else of classes)."""
        settings = self.settings() or _BY_ACCURACY
        return tuple(
            name.format(each=each, metric=settings["metric"])
            for name in self.tables[table]
            for each in (settings["metrics"] if "{each}" in name else [None])
        )

    @property
    def free_name(self) -> str:
        """A name beside the folder's own that no folder has."""
        names = (f"{self.folder.name}-{number}" for number in count(2))
        return next(name for name in names if not self.folder.with_name(name).exists())

    def begin(self, settings: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
        """Writes the settings of a command that begins here, or goes on where it was stopped.

        Args:
            settings: Of the command.
            may_differ: Settings that may change when it goes on.

        Raises:
            ConfigError: The folder's results have other settings.
        """
        before = self.settings()
        changed = [key for key in settings if key not in may_differ and before.get(key) != settings[key]]
        fault = "" if before or not any(self.folder.glob("*")) else "other files"
        if before and changed:
            change = f"(there {before.get(changed[0])}, now {settings[changed[0]]})"
            fault = f"a {self.content} with other {', '.join(changed)} {change}"
        if fault:
            remedy = f"give another name, as --{self.name_field} {self.free_name}"
            raise ConfigError(f"{self.name_field}: {self.folder} holds {fault}; {remedy}")
        self.write_settings(settings)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns a table, with empty cells as ``None``, without a last line that a kill cut short."""
        path, settings, columns = self._table(table), self.settings(), self.columns(table)
        if not os.path.lexists(path):
            return []
        rows = read_table(path, columns, table in _GROWING and not settings.get("complete"))
        with reading(path):
            read = [{name: read_cell(name, row[name]) for name in columns} for row in rows]  # without former ones
            if empty := [name for row in read for name in row if row[name] is None and name in _FILLED]:
                raise ValueError(f"a row has no {empty[0]}")
            if table == "evaluations" and [row["number"] for row in read] != [*range(len(read))]:
                raise ValueError("its rows are not numbered from 0")
        return read

    def write(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes a table as a whole."""
        replace_table(self._table(table), self.columns(table), rows)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows to a table that :meth:`write` began."""
        unseal(self._table(table))
        with naming(self._table(table)), open(self._table(table), "a", newline="") as file:
            file.write(table_text([row.get(name) for name in self.columns(table)] for row in rows))

    @property
    def tier_names(self) -> list[str]:
        """The tiers whose network was written."""
        return sorted(path.parent.name for path in self.folder.glob(f"tiers/*/{MODEL_FILE}"))

    def tier_folder(self, tier: str) -> Path:
        """Returns the folder of a tier's network."""
        return self.folder / "tiers" / tier

    def tier_model(self, tier: str) -> TierModel:
        """Reads a tier's ``architecture.json``."""
        path = self.tier_folder(tier) / MODEL_FILE
        content = read_json(path, TIER_MODEL)
        with reading(path):
            return TierModel(**content)

    def write_tier_model(self, model: TierModel) -> None:
        """Writes a tier's ``architecture.json``."""
        replace_json(self.tier_folder(model.tier) / MODEL_FILE, asdict(model))

    def _table(self, name: str) -> Path:
        return self.folder / f"{name}.csv"


class SearchFiles(TierFiles):
    """Reads and writes a search's folder."""

    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "evaluations": _EVALUATION,
        "latencies": ("arch", "latency_ms"),
        "history": ("tier", "generation", "evaluations", "best_{metric}", "hypervolume"),
        "federated": (
            *("tier", "generation", "evaluation_rounds", "clients", "architectures", "supernet_bytes"),
            *("bytes_down", "bytes_up", "macs"),
        ),
        "front": ("tier", *_EVALUATION),
        "tiers": ("tier", "arch", "val_{each}", "test_{each}", *COST_NAMES, "evaluations", "hypervolume"),
    }


class FinetuneFiles(TierFiles):
    """Reads and writes a fine-tuning's folder."""

    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "candidates": _FINETUNED,
        "tiers": _FINETUNED,
        "models": ("arch", "macs_per_example", "clients", "examples", "{each}_before", "{each}"),
        "models-clients": ("arch", "client", "num_examples", "{each}_before", "{each}"),
    }
    known_by = "search"
    content = "fine-tuning"
    name_field = "finetune.name"

    def rank_correlation(self) -> float | None:
        """Returns how alike candidates rank in the supernet and in the end (FedorAS, App. K.3, Fig. 12).

        Returns:
            Kendall's tau (b) between their validation metric before and their test metric after the fine-tuning;
            None if it began from scratch, there are fewer than five, or fewer than two values differ.
        """
        settings = self.settings()
        rows = self.rows("candidates") if settings.get("initial") == "supernet" else []
        pairs = [(row[f"val_{settings['metric']}_before"], row.get(f"test_{settings['metric']}")) for row in rows]
        before, after = ([pair[place] for pair in pairs if None not in pair] for place in (0, 1))
        if len(before) < _LEAST_RANKED or min(len(set(before)), len(set(after))) < 2:
            return None
        from scipy.stats import kendalltau  # which takes a second: what reads records starts without it

        return float(kendalltau(before, after).statistic)


def flat_front(settings: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]]) -> str:
    """Returns a sentence if no larger tier's network is better than the smallest tier's; else an empty text.

    An accuracy is better if its gain exceeds the half width of the 95 % interval of the difference, by the normal
    approximation: ``1.96 * sqrt((p (1 - p) + q (1 - q)) / n)`` for accuracies p and q on n examples. Records hold no
    pairs of answers, so p and q count as independent. This is conservative: networks tend to fail on the same examples,
    so the interval is rather too wide, and so it is where an example has several labels. The noise of other metrics and
    of accuracies over tokens is unknown: any gain counts. Clients' scores (``search.federated``) are of different
    examples, and cannot be compared.

    Args:
        settings: The content of a search's ``settings.json``.
        tiers: The rows of its ``tiers.csv``.

    Example:
        >>> search = {"metric": "accuracy", "metrics": {"accuracy": True}, "cost": "macs", "num_examples": 600}
        >>> small, large = ({"arch": a, "macs": m, "val_accuracy": p} for a, m, p in [("s", 1, 0.88), ("l", 2, 0.89)])
        >>> flat_front(search, [small, large])[:73]
        'Larger networks are not better here (within ±3.6 points on 600 validation'
    """
    metric, metrics, examples = settings["metric"], settings["metrics"], settings.get("num_examples")
    if len(tiers) < 2 or not examples or settings.get("federated"):
        return ""
    smallest, *larger = sorted(tiers, key=lambda row: row[settings.get("cost", "macs")])
    of_smallest, *errors = (error(row.get(f"val_{metric}", nan), metrics[metric]) for row in (smallest, *larger))
    least, half_width, noise = min(errors), 0.0, ""
    if metric == "accuracy" and "perplexity" not in metrics:
        half_width = 1.96 * sqrt((of_smallest * (1 - of_smallest) + least * (1 - least)) / examples)
        noise = f" (within ±{100 * half_width:.1f} points on {examples:,} validation examples)"
    remedy = f"train `{smallest['arch']}` alone, or give smaller tiers"
    return f"Larger networks are not better here{noise}; {remedy}." if of_smallest - least <= half_width else ""


def read_cell(name: str, cell: str) -> Any:
    """Returns the value of a table's cell by the name of its column; ``None`` for an empty one."""
    if cell == "" or name in _TEXT_COLUMNS:
        return cell or None
    number = int(cell) if name in WHOLE_COLUMNS else float(cell)
    if name in WHOLE_COLUMNS and number < 0:
        raise ValueError(f"{name} is {number}")
    return number
