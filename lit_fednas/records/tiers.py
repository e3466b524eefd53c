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
#: Stands for all tiers together, in place of a tier's name.
ALL_TIERS = "*"

COST_NAMES: tuple[str, ...] = get_args(CostName)
#: The file that describes a tier's network.
MODEL_FILE = "architecture.json"

_EVALUATION = ("number", "arch", "{all}", *COST_NAMES, "seconds")

_FINETUNED = (
    *("tier", "number", "arch", "eligible", "rounds", "val_{all}_before", "val_{all}"),
    *("macs", "bytes_down", "bytes_up", "test_{all}", "macs_per_example", "parameters", "bytes"),
)

#: The settings that decide the columns of a folder without settings.
_BY_ACCURACY: dict[str, Any] = {"metrics": OF_CLASSES, "metric": next(iter(OF_CLASSES))}

_USUAL = ("search", "finetune")  # names of folders
#: Minimum number of pairs for a rank correlation: of four pairs, one random order in twelve is perfect or reversed.
_MIN_PAIRS = 5

#: Tables that grow row by row.
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
    """The content of ``architecture.json``: the network of a tier."""

    tier: str  # the tier's name
    arch: str  # the architecture in its space's text form
    encoding: list[int]  # the architecture's genes
    supernet: str  # the supernet's class, for a reader
    input_shape: list[int]  # the shape of one example
    num_classes: int  # the width of the output
    recalibrated: bool  # whether the norms' running statistics were gathered again
    costs: dict[str, float] = field(default_factory=dict)  # the known costs by name
    metrics: dict[str, float] = field(default_factory=dict)  # the metrics by name, such as ``val_accuracy``
    finetuned: bool = False  # whether the weights were trained after the search
    # for drawings: the blocks of each stage, each with its choice and its size, or null for an absent block
    stages: Sequence[Sequence[Sequence[Any] | None]] = ()


class TierFiles:
    """Reads and writes the folder of a search or a fine-tuning, usually ``<run>/search`` or ``<run>/finetune``."""

    #: The columns of each table; ``{all}`` stands for every metric, ``{metric}`` for the one that ranks.
    tables: ClassVar[Mapping[str, Sequence[str]]] = {}
    #: A key that ``settings.json`` has only in such folders.
    settings_key: ClassVar[str] = "method"
    #: The folder's content and the setting that names the folder, for errors.
    content: ClassVar[str] = "search"
    name_field: ClassVar[str] = "search.name"

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._settings_file = self.folder / "settings.json"

    @classmethod
    def within(cls, run: Path) -> list[Self]:
        """Returns all such folders within a run's: first the one with the usual name, then the others by name."""
        folders = [cls(path.parent) for path in run.glob("*/settings.json")]
        folders = [files for files in folders if cls.settings_key in files.settings()]
        return sorted(folders, key=lambda files: (files.folder.name not in _USUAL, files.folder.name))

    def exists(self) -> bool:
        """Returns whether a command has begun here."""
        return self._settings_file.exists()

    def settings(self) -> dict[str, Any]:
        """Reads ``settings.json``; empty if no command has begun here."""
        settings = read_json(self._settings_file, SETTINGS)
        with reading(self._settings_file):
            if settings and settings["metric"] not in settings["metrics"]:
                raise ValueError(f"metric {settings['metric']!r} is not measured")
        return settings

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes ``settings.json``."""
        replace_json(self._settings_file, settings)

    def finish(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings of a command that has ended, and saves the checksums of its files."""
        self.write_settings({**settings, "complete": True})
        seal(self.folder, self._settings_file.name, CLIENTS_FILE, *(self._table(table).name for table in self.tables))
        for tier in self.tier_names:
            seal(self.tier_folder(tier), MODEL_FILE)

    def columns(self, table: str) -> tuple[str, ...]:
        """Returns a table's columns for the metrics in ``settings.json``, by default those of classes."""
        settings = self.settings() or _BY_ACCURACY
        return tuple(
            name.format(all=metric, metric=settings["metric"])
            for name in self.tables[table]
            for metric in (settings["metrics"] if "{all}" in name else [None])
        )

    @property
    def free_name(self) -> str:
        """The folder's name with the smallest number that gives no existing folder."""
        names = (f"{self.folder.name}-{number}" for number in count(2))
        return next(name for name in names if not self.folder.with_name(name).exists())

    def begin(self, settings: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
        """Writes the settings of a command that begins or continues here.

        Args:
            settings: The command's settings.
            may_differ: Names of settings that may change when the command continues.

        Raises:
            ConfigError: The folder's results have other settings.
        """
        saved = self.settings()
        changed = [key for key in settings if key not in may_differ and saved.get(key) != settings[key]]
        fault = "" if saved or not any(self.folder.glob("*")) else "other files"
        if saved and changed:
            change = f"(there {saved.get(changed[0])}, now {settings[changed[0]]})"
            fault = f"a {self.content} with other {', '.join(changed)} {change}"
        if fault:
            remedy = f"give another name, such as --{self.name_field} {self.free_name}"
            raise ConfigError(f"{self.name_field}: {self.folder} holds {fault}; {remedy}")
        self.write_settings(settings)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns a table's rows, with ``None`` for empty cells and without a truncated last line."""
        path, settings, columns = self._table(table), self.settings(), self.columns(table)
        if not os.path.lexists(path):
            return []
        rows = read_table(path, columns, table in _GROWING and not settings.get("complete"))
        with reading(path):
            cells = [{name: read_cell(name, row[name]) for name in columns} for row in rows]  # drops obsolete columns
            if empty := [name for row in cells for name in row if row[name] is None and name in _FILLED]:
                raise ValueError(f"a row has no {empty[0]}")
            if table == "evaluations" and [row["number"] for row in cells] != [*range(len(cells))]:
                raise ValueError("its rows are not numbered from 0")
        return cells

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
        """The names of the tiers that have a network here."""
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
        "tiers": ("tier", "arch", "val_{all}", "test_{all}", *COST_NAMES, "evaluations", "hypervolume"),
    }


class FinetuneFiles(TierFiles):
    """Reads and writes a fine-tuning's folder."""

    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "candidates": _FINETUNED,
        "tiers": _FINETUNED,
        "models": ("arch", "macs_per_example", "clients", "examples", "{all}_before", "{all}"),
        "models-clients": ("arch", "client", "num_examples", "{all}_before", "{all}"),
    }
    settings_key = "search"
    content = "fine-tuning"
    name_field = "finetune.name"

    def rank_correlation(self) -> float | None:
        """Returns the rank correlation of candidates before and after fine-tuning (FedorAS, App. K.3, Fig. 12).

        It is Kendall's tau (b) between the validation metric before and the test metric after the fine-tuning. It is
        ``None`` after training from scratch, for fewer than five candidates, or if all values of a side are equal.
        """
        settings = self.settings()
        rows = self.rows("candidates") if settings.get("initial") == "supernet" else []
        pairs = [(row[f"val_{settings['metric']}_before"], row.get(f"test_{settings['metric']}")) for row in rows]
        val_scores, test_scores = ([pair[side] for pair in pairs if None not in pair] for side in (0, 1))
        if len(val_scores) < _MIN_PAIRS or min(len(set(val_scores)), len(set(test_scores))) < 2:
            return None
        from scipy.stats import kendalltau  # imported here because it takes a second

        return float(kendalltau(val_scores, test_scores).statistic)


def flat_front(settings: Mapping[str, Any], tiers: Sequence[Mapping[str, Any]]) -> str:
    """Returns a sentence if no larger tier of a search has a better network than the smallest; else an empty text.

    An accuracy is better if its gain exceeds half the width of the 95 % interval of the difference. The normal
    approximation of this is ``1.96 * sqrt((p (1 - p) + q (1 - q)) / n)`` for accuracies p and q on n examples. Records
    hold no paired answers, so p and q count as independent. The interval is rather too wide, because networks tend to
    fail on the same examples. For other metrics and accuracies over tokens the noise is unknown, so any gain counts.
    Clients' scores (``search.federated``) are not compared, because they are of different examples.

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
    smallest_error, *errors = (error(row.get(f"val_{metric}", nan), metrics[metric]) for row in (smallest, *larger))
    lowest_error, half_width, noise = min(errors), 0.0, ""
    if metric == "accuracy" and "perplexity" not in metrics:
        variance = (smallest_error * (1 - smallest_error) + lowest_error * (1 - lowest_error)) / examples
        half_width = 1.96 * sqrt(variance)
        noise = f" (within ±{100 * half_width:.1f} points on {examples:,} validation examples)"
    text = f"Larger networks are not better here{noise}; train `{smallest['arch']}` alone, or give smaller tiers."
    return text if smallest_error - lowest_error <= half_width else ""


def read_cell(name: str, cell: str) -> Any:
    """Returns the value of a cell by the name of its column; ``None`` for an empty cell."""
    if cell == "" or name in _TEXT_COLUMNS:
        return cell or None
    number = int(cell) if name in WHOLE_COLUMNS else float(cell)
    if name in WHOLE_COLUMNS and number < 0:
        raise ValueError(f"{name} is {number}")
    return number
